package soft

import (
	"github.com/gpufd/gpufd/cu/sys"
	"golang.org/x/sys/unix"
)

// Memory of the host's NUMA node is a file as that of a device is. The host may
// touch it where a mapping says so: then the file is mapped at the device
// address, too.

// hostOrdinal stands for the host where devices have an ordinal, behind all of
// those.
const hostOrdinal = maxDevices

// hostNUMA is the version of CUDA that brought such memory.
const hostNUMA = 12020

// host reports whether it is memory of the host.
func (t *trailer) host() bool { return t.ordinal == hostOrdinal }

// hostNode returns what stands for the host's memory, of which there is as much
// as a device has.
func hostNode(c config, s *store) *device {
	return &device{ordinal: hostOrdinal, uuid: s.uuid(hostOrdinal), memory: c.memory}
}

// createNode is propDevice for memory of the host, which has one NUMA node.
func (m *machine) createNode(prop *sys.CUmemAllocationProp) (*device, sys.CUresult) {
	switch {
	case prop.Type != sys.CU_MEM_ALLOCATION_TYPE_PINNED:
		return nil, sys.CUDA_ERROR_INVALID_VALUE
	case m.conf.version < hostNUMA:
		return nil, sys.CUDA_ERROR_INVALID_DEVICE
	case prop.Location.Id != 0:
		return nil, sys.CUDA_ERROR_INVALID_VALUE // C43
	}
	return m.node, sys.CUDA_SUCCESS
}

// locationOf returns where memory is.
func (m *machine) locationOf(p *physical) sys.CUmemLocation {
	if p.host() {
		return sys.CUmemLocation{Type: sys.CU_MEM_LOCATION_TYPE_HOST_NUMA}
	}
	return sys.CUmemLocation{Type: sys.CU_MEM_LOCATION_TYPE_DEVICE, Id: int32(m.number(p.dev))}
}

// keepFile returns a descriptor of the memory behind fd that stays with it. It is
// never 0.
func keepFile(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3) }

// mayShow returns whether the host can have the rights.
func mayShow(d sys.CUmemAccessDesc, mappings []*mapping) sys.CUresult {
	for _, p := range mappings {
		if !p.phys.host() {
			return sys.CUDA_ERROR_NOT_SUPPORTED
		}
	}
	if d.Location.Type == sys.CU_MEM_LOCATION_TYPE_HOST_NUMA && d.Location.Id != 0 {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	return validRights(d.Flags)
}

// allow gives the rights to a device or the host.
func (p *mapping) allow(d sys.CUmemAccessDesc) sys.CUresult {
	if d.Location.Type == sys.CU_MEM_LOCATION_TYPE_DEVICE {
		p.rights[d.Location.Id] = d.Flags
		return sys.CUDA_SUCCESS
	}
	return p.show(d.Flags)
}

// show maps the memory at its device address for the host.
func (p *mapping) show(f sys.CUmemAccess_flags) sys.CUresult {
	prot := unix.PROT_READ
	switch f {
	case sys.CU_MEM_ACCESS_FLAGS_PROT_NONE:
		p.hide()
		return sys.CUDA_SUCCESS
	case sys.CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
		prot |= unix.PROT_WRITE
	}
	if mapFileAt(p.base, p.size, p.phys.file, prot) != nil {
		return sys.CUDA_ERROR_OUT_OF_MEMORY
	}
	p.host = f
	return sys.CUDA_SUCCESS
}

// hide takes memory that is to be unmapped away from the host.
func hide(mappings []*mapping) {
	for _, p := range mappings {
		p.hide()
	}
}

// hide takes the memory away from the host, if it has it.
func (p *mapping) hide() {
	if p.host != 0 {
		hideAt(p.base, p.size)
		p.host = 0
	}
}
