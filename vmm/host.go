package vmm

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/gpufd/gpufd/cu"
)

// CreateHost makes size bytes of physical memory on a NUMA node of the host, which
// read as zeros. The caller owns it. It is pinned, devices reach it over the bus
// and the host directly ([Mapping.SetHostAccess]), and [Allocation.Export] shares
// it with other processes ([ImportHost]). size is a multiple of the granularity
// ([cu.Driver.Granularity] with the location). 16 GiB take an H200's driver about
// 4 seconds: make such memory beforehand.
//
// It needs CUDA 12.2 and a device with
// [cu.AttributeHostNUMAVirtualMemoryManagementSupported], and the errors say so;
// [cu.AttributeHostNUMAID] is the node nearest to a device. Errors: [ErrSize];
// [cu.ErrInvalidValue] for a node that is not there, [cu.ErrOutOfMemory], and what
// an old driver gives, such as [cu.ErrInvalidDevice].
func CreateHost(drv *cu.Driver, node int, size uint64) (*Allocation, error) {
	if drv == nil {
		return nil, fmt.Errorf("%w: creating memory of the host needs a driver", ErrNil)
	}
	p := cu.MemProperties{Location: cu.HostNUMALocation(node), HandleTypes: cu.HandleFD}
	if node < 0 || int(int32(node)) != node {
		return nil, fmt.Errorf("vmm: there is no %s: %w", p.Location, cu.ErrInvalidValue)
	}
	g, _, err := drv.Granularity(p)
	if err == nil && (size == 0 || size%g != 0) {
		return nil, fmt.Errorf("%w: %d bytes on %s are not a positive multiple of the granularity %d", ErrSize, size, p.Location, g)
	}
	var h *cu.MemHandle
	if err == nil {
		h, err = drv.CreateMemory(size, p)
	}
	if err != nil {
		return nil, fmt.Errorf("vmm: creating %d bytes on %s: %w%s", size, p.Location, err, noHostMemory(drv, err))
	}
	return &Allocation{place: p.Location, handle: h, own: true}, nil
}

// noHostMemory says what the driver or its devices lack for memory of the host, or
// returns "".
func noHostMemory(drv *cu.Driver, err error) string {
	if errors.Is(err, cu.ErrOutOfMemory) {
		return ""
	}
	if drv.Version() < sinceHostNUMA {
		return fmt.Sprintf("; memory of NUMA nodes needs CUDA 12.2, and the driver is %s", drv)
	}
	for _, dev := range drv.Devices() {
		if can, err := dev.Attribute(cu.AttributeHostNUMAVirtualMemoryManagementSupported); err != nil || can != 0 {
			return ""
		}
	}
	return "; no device here supports memory of NUMA nodes (its attribute HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED is 0)"
}

// sinceHostNUMA is the version of CUDA that brought memory of NUMA nodes.
const sinceHostNUMA = 12020

// ImportHost makes an Allocation of memory that another process made with
// [CreateHost] and exported: size bytes, as that process says. The caller keeps f
// and may close it at once. [Reservation.Map] finds out if size is a lie.
//
// Errors: [cu.ErrUnknown] for a descriptor that is not memory; a
// [*DescriptorError] for memory of a device; [os.ErrInvalid] for no file,
// [os.ErrClosed] for a closed one.
func ImportHost(drv *cu.Driver, f *os.File, size uint64) (*Allocation, error) {
	if drv == nil {
		return nil, fmt.Errorf("%w: importing memory of the host needs a driver", ErrNil)
	}
	h, err := drv.ImportMemory(f, size)
	if err != nil {
		return nil, fmt.Errorf("vmm: importing memory of the host: %w", err)
	}
	p, err := h.Properties()
	if err == nil && p.Location.Type != cu.LocationHostNUMA {
		err = badField("device", fmt.Sprintf("is the host, but the memory is on %s", p.Location))
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return &Allocation{place: p.Location, handle: h}, nil
}

// Location returns where the memory is: a device, or a NUMA node of the host.
func (a *Allocation) Location() cu.Location {
	if a == nil {
		return cu.Location{}
	}
	return a.place
}

// host reports whether the memory is the host's.
func (a *Allocation) host() bool { return a.place.Type == cu.LocationHostNUMA }

// SetHostAccess sets what the host may do with a mapping of memory of
// [CreateHost] or [ImportHost], at its address: see [Mapping.HostBytes]. For memory
// of a device the error is [ErrAccess].
func (m *Mapping) SetHostAccess(a cu.Access) error {
	if m == nil || m.inner == nil {
		return closedError("mapping")
	}
	defer runtime.KeepAlive(m)
	m.inner.mu.Lock()
	defer m.inner.mu.Unlock()
	in := m.inner
	switch {
	case in.closed.Load():
		return closedError("mapping")
	case !in.alloc.host():
		return fmt.Errorf("%w: the host cannot use memory of %s; copy it, or make memory with CreateHost", ErrAccess, in.alloc.place)
	}
	err := in.res.setAccessEach(in.offset, in.size, cu.LocationAccess{Location: in.alloc.place, Access: a})
	if err == nil {
		in.hostAccess = a
	}
	return err
}

// HostBytes returns the memory of the mapping for the host, nil without access of
// the host ([Mapping.SetHostAccess]) and after Close. Do not use it, or a slice of
// it, after Close, or beyond the access that was set: that ends the process.
// Whoever reads what a device writes, or the reverse, first waits for the work.
func (m *Mapping) HostBytes() []byte {
	if m == nil || m.inner == nil {
		return nil
	}
	m.inner.mu.Lock()
	defer m.inner.mu.Unlock()
	if m.inner.closed.Load() || m.inner.hostAccess == cu.NoAccess {
		return nil
	}
	return hostBytes(m.inner.ptr(), m.inner.size)
}
