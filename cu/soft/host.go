package soft

import (
	"slices"

	"github.com/gpufd/gpufd/cu/sys"
)

// A hostTable is the pinned host memory that the driver gave out, by address.
// Copies to and from it are truly asynchronous, since it stays until freed.
type hostTable struct{ blocks []*hostBlock }

// A hostBlock is memory of cuMemHostAlloc. It outlives its cuMemFreeHost while
// copies use it.
type hostBlock struct {
	ctx        *context
	base, size uintptr
	flags      uint32
	pins       int
	freed      bool
}

// find returns the block that addr is in, and its place, or nil and the place
// where it would go.
func (t *hostTable) find(addr uintptr) (*hostBlock, int) {
	i, found := slices.BinarySearchFunc(t.blocks, addr, func(b *hostBlock, a uintptr) int {
		return within(a, b.base, b.base+b.size)
	})
	if !found {
		return nil, i
	}
	return t.blocks[i], i
}

// holding returns the block that the whole range is in, or nil.
func (t *hostTable) holding(addr, size uintptr) *hostBlock {
	b, _ := t.find(addr)
	if b == nil || size > b.base+b.size-addr {
		return nil
	}
	return b
}

// pin keeps the block's memory.
func (b *hostBlock) pin() { b.pins++ }

// unpin ends a pin; if the block was freed meanwhile its memory goes.
func (b *hostBlock) unpin() {
	if b.pins--; b.pins == 0 && b.freed {
		unmap(b.base, b.size)
	}
}

// free takes the block out of the table. Its memory goes with the last pin.
func (t *hostTable) free(b *hostBlock) {
	_, i := t.find(b.base)
	t.blocks = slices.Delete(t.blocks, i, i+1)
	b.freed = true
	b.pin()
	b.unpin()
}

// freeAll frees what a context owns.
func (t *hostTable) freeAll(ctx *context) {
	for _, b := range slices.Clone(t.blocks) {
		if b.ctx == ctx {
			t.free(b)
		}
	}
}

func (m *machine) cuMemAllocHost(out *uintptr, size uintptr) sys.CUresult {
	return m.cuMemHostAlloc(out, size, 0)
}

// cuMemHostAlloc makes memory that is always mapped for devices. Of nothing it
// makes a null pointer.
func (m *machine) cuMemHostAlloc(out *uintptr, size uintptr, flags uint32) sys.CUresult {
	ctx, r := m.lockCurrent()
	defer m.mu.Unlock()
	if r != sys.CUDA_SUCCESS {
		return r
	}
	const known = sys.CU_MEMHOSTALLOC_PORTABLE | sys.CU_MEMHOSTALLOC_DEVICEMAP | sys.CU_MEMHOSTALLOC_WRITECOMBINED
	if out == nil || flags&^known != 0 {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	if size == 0 {
		*out = 0
		return sys.CUDA_SUCCESS
	}
	base, err := mapHost(size)
	if err != nil {
		return sys.CUDA_ERROR_OUT_OF_MEMORY
	}
	flags |= sys.CU_MEMHOSTALLOC_DEVICEMAP
	b := &hostBlock{ctx: ctx, base: base, size: size, flags: flags}
	_, i := m.host.find(base)
	m.host.blocks = slices.Insert(m.host.blocks, i, b)
	*out = base
	return sys.CUDA_SUCCESS
}

// cuMemFreeHost needs no current context.
func (m *machine) cuMemFreeHost(p uintptr) sys.CUresult {
	r := m.lockAnywhere()
	defer m.mu.Unlock()
	if r != sys.CUDA_SUCCESS || p == 0 {
		return r
	}
	b, _ := m.host.find(p)
	if b == nil || b.base != p {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	m.host.free(b)
	return sys.CUDA_SUCCESS
}

// cuMemHostGetDevicePointer returns the same address: addressing is unified.
func (m *machine) cuMemHostGetDevicePointer(out *sys.CUdeviceptr, p uintptr, flags uint32) sys.CUresult {
	_, r := m.lockCurrent()
	defer m.mu.Unlock()
	if r != sys.CUDA_SUCCESS {
		return r
	}
	if b, _ := m.host.find(p); b == nil || flags != 0 {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	return set(r, out, sys.CUdeviceptr(p))
}

func (m *machine) cuMemHostGetFlags(out *uint32, p uintptr) sys.CUresult {
	_, r := m.lockCurrent()
	defer m.mu.Unlock()
	if r != sys.CUDA_SUCCESS {
		return r
	}
	b, _ := m.host.find(p)
	if b == nil {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	return set(r, out, b.flags)
}
