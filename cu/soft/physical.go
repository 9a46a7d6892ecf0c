package soft

import (
	"errors"

	"github.com/gpufd/gpufd/cu/sys"
	"golang.org/x/sys/unix"
)

// A physical is device memory that this process uses: a file of the store,
// mapped once, wherever and however often the caller maps it (D2). The mapping
// is what holds the memory; no fd is kept, so that allocations do not use up a
// process's fds, as on hardware.
//
// refs counts the handle, the mappings and the copies under way; the last one
// gives the memory back (D12, D13).
type physical struct {
	trailer
	dev    *device
	alias  uintptr
	types  sys.CUmemAllocationHandleType // that it may be exported as
	handle sys.CUmemGenericAllocationHandle
	refs   int
	lent   bool      // no file of the store that is ours to remove: another process' pool has it, or another API
	export *control  // that cuIpcGetMemHandle made
	file   int       // of memory of the host; else 0
	of     *physical // that this is a part of, if it is one
	number uint64    // of CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID
	syncs  bool      // of CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
}

// A handle is what cuMemCreate and cuMemImportFromShareableHandle give out,
// counted by cuMemRetainAllocationHandle.
type handle struct {
	phys *physical
	refs int
}

// linearUnit is what memory of cuMemAlloc is rounded up to.
const linearUnit = 64 << 10

// allocate makes new memory of the kind on a device.
func (m *machine) allocate(d *device, kind uint32, size uint64) (*physical, sys.CUresult) {
	return m.allocateAs(d, trailer{kind: kind, ordinal: d.ordinal, size: size, uuid: d.uuid})
}

// allocateAs makes the memory that t describes. If there is no room, pools give
// up what they do not use.
func (m *machine) allocateAs(d *device, t trailer) (*physical, sys.CUresult) {
	fd, err := m.store.create(&t, d.memory)
	if errors.Is(err, errFull) && m.shrinkAll(d, 0) > 0 {
		fd, err = m.store.create(&t, d.memory)
	}
	switch {
	case errors.Is(err, errFull):
		return nil, sys.CUDA_ERROR_OUT_OF_MEMORY
	case err != nil: // a store that does not work
		return nil, sys.CUDA_ERROR_OPERATING_SYSTEM
	}
	p, r := m.adopt(fd, t, d)
	unix.Close(fd)
	if r != sys.CUDA_SUCCESS {
		_ = m.store.reclaim(&t)
	}
	return p, r
}

// adopt maps the memory behind fd, which the caller keeps. The new physical has
// no reference yet.
func (m *machine) adopt(fd int, t trailer, d *device) (*physical, sys.CUresult) {
	alias, err := mapShared(fd, uintptr(t.size))
	if err != nil {
		return nil, sys.CUDA_ERROR_OUT_OF_MEMORY
	}
	p := &physical{trailer: t, dev: d, alias: alias, number: m.newBufferID()}
	if t.host() {
		if p.file, err = keepFile(fd); err != nil {
			unmap(alias, uintptr(t.size))
			return nil, sys.CUDA_ERROR_OPERATING_SYSTEM
		}
	}
	return p, sys.CUDA_SUCCESS
}

// adoptOpened is adopt for an fd that the store has opened, and closes it. If the
// file is not the memory that t describes, the result is other.
func (m *machine) adoptOpened(fd int, t trailer, d *device, other sys.CUresult) (*physical, sys.CUresult) {
	defer unix.Close(fd)
	if have, ok := readTrailer(fd); !ok || *have != t {
		return nil, other
	}
	return m.adopt(fd, t, d)
}

// hold adds a reference.
func (p *physical) hold() { p.refs++ }

// drop removes a reference. The last one frees the memory, unless another process
// holds it too. A store that has gone meanwhile is not an error.
func (m *machine) drop(p *physical) {
	if p.refs--; p.refs > 0 {
		return
	}
	if p.export != nil {
		m.dropControl(p.export)
	}
	if p.of != nil {
		m.drop(p.of)
		return
	}
	unmap(p.alias, uintptr(p.size))
	if p.file > 0 {
		unix.Close(p.file)
	}
	if !p.lent {
		_ = m.store.reclaim(&p.trailer)
	}
}

// newAllocation returns a handle that holds the memory: the one it has, if any.
func (m *machine) newAllocation(p *physical) sys.CUmemGenericAllocationHandle {
	if p.handle == 0 {
		p.handle = sys.CUmemGenericAllocationHandle(m.newHandle(kindAllocation, 0))
	}
	m.handles[p.handle] = &handle{phys: p, refs: 1}
	p.hold()
	return p.handle
}
