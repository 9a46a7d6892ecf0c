package soft

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gpufd/gpufd/cu/sys"
)

// A hostTable is the pinned host memory by address: what the driver allocated and
// what callers registered. Copies to and from it are truly asynchronous, since it
// stays until it is freed or unregistered.
type hostTable struct{ blocks []*hostBlock }

// A hostBlock is memory of cuMemHostAlloc, which outlives its cuMemFreeHost while
// work of other contexts uses it, or of cuMemHostRegister, which is the caller's.
type hostBlock struct {
	ctx        *context
	base, size uintptr
	flags      uint32 // of cuMemHostGetFlags
	registered bool
	readOnly   bool   // for devices
	id         uint64 // of CU_POINTER_ATTRIBUTE_BUFFER_ID
	syncs      bool   // of CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
	pins       int
	freed      bool
}

// find returns the block that contains addr, and its place, or nil and the place
// for a new one.
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

// add puts a block into the table, which has none there.
func (t *hostTable) add(b *hostBlock) {
	_, i := t.find(b.base)
	t.blocks = slices.Insert(t.blocks, i, b)
}

// overlapping returns the first block that has any of the range, or nil.
func (t *hostTable) overlapping(addr, size uintptr) *hostBlock {
	_, i := t.find(addr)
	if i < len(t.blocks) && t.blocks[i].base < addr+size {
		return t.blocks[i]
	}
	return nil
}

// pin keeps the block's memory.
func (b *hostBlock) pin() { b.pins++ }

// unpin ends a pin; if the block was freed meanwhile its memory goes.
func (b *hostBlock) unpin() {
	if b.pins--; b.pins == 0 && b.freed && !b.registered {
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

// freeBlocks ends what a context owns.
func (m *machine) freeBlocks(ctx *context) {
	for _, b := range slices.Clone(m.host.blocks) {
		if b.ctx == ctx {
			m.freeBlock(b)
		}
	}
}

// freeBlock takes a block from kernels of other contexts, too.
func (m *machine) freeBlock(b *hostBlock) {
	m.host.free(b)
	m.withdraw(b.base, b.size)
	how := "freed"
	if b.registered {
		how = "unregistered"
	}
	m.space.remember(b.base, b.base, b.size, how)
}

func (m *machine) cuMemAllocHost_v2(out *uintptr, size uintptr) sys.CUresult {
	return m.cuMemHostAlloc(out, size, 0)
}

// cuMemHostAlloc makes memory that is always mapped for devices. For 0 bytes it
// stores a null pointer.
func (m *machine) cuMemHostAlloc(out *uintptr, size uintptr, flags uint32) sys.CUresult {
	return withContext(m, m.current, func(ctx *context) sys.CUresult {
		const known = sys.CU_MEMHOSTALLOC_PORTABLE | sys.CU_MEMHOSTALLOC_DEVICEMAP | sys.CU_MEMHOSTALLOC_WRITECOMBINED
		if out == nil || flags&^known != 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		if size == 0 {
			return set(out, 0)
		}
		base, err := mapHost(size)
		if err != nil {
			return sys.CUDA_ERROR_OUT_OF_MEMORY
		}
		flags |= sys.CU_MEMHOSTALLOC_DEVICEMAP
		m.host.add(&hostBlock{ctx: ctx, base: base, size: size, flags: flags, id: m.newBufferID()})
		return set(out, base)
	})
}

// cuMemFreeHost takes a null pointer, too.
func (m *machine) cuMemFreeHost(p uintptr) sys.CUresult {
	if p == 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.anywhere()
	}
	return m.endBlock(p, func(b *hostBlock) sys.CUresult {
		if b == nil || b.base != p || b.registered {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		return sys.CUDA_SUCCESS
	})
}

// endBlock ends the block at p, if allowed agrees, after all work of its context.
// It needs no current one.
func (m *machine) endBlock(p uintptr, allowed func(*hostBlock) sys.CUresult) sys.CUresult {
	var b *hostBlock
	return m.afterWork(func() (*context, sys.CUresult) {
		r := m.anywhere()
		if b, _ = m.host.find(p); r == sys.CUDA_SUCCESS {
			r = allowed(b)
		}
		if r != sys.CUDA_SUCCESS {
			return nil, r
		}
		return b.ctx, r
	}, func() sys.CUresult {
		if again, _ := m.host.find(p); again != b {
			return m.misuse(sys.CUDA_ERROR_INVALID_VALUE, "host memory %#x given back twice at once", p)
		}
		m.freeBlock(b)
		return sys.CUDA_SUCCESS
	})
}

// maxHostMemory is more than any host has.
const maxHostMemory = 1 << 44

// cuMemHostRegister takes any memory of the caller that a device could use:
// exactly these bytes, of pages that exist.
func (m *machine) cuMemHostRegister(p, size uintptr, flags uint32) sys.CUresult {
	return withContext(m, m.current, func(ctx *context) sys.CUresult {
		// CU_MEMHOSTREGISTER_IOMEMORY is refused: it is for memory of other kinds of
		// device, and the software driver has none.
		const readOnly = sys.CU_MEMHOSTREGISTER_READ_ONLY
		const known = sys.CU_MEMHOSTREGISTER_PORTABLE | sys.CU_MEMHOSTREGISTER_DEVICEMAP | readOnly
		other := m.host.overlapping(p, size)
		switch {
		case p == 0, size == 0, p+size < p, flags&^known != 0:
			return sys.CUDA_ERROR_INVALID_VALUE
		case size > maxHostMemory:
			return sys.CUDA_ERROR_OUT_OF_MEMORY
		case other != nil && other.registered:
			return sys.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
		case other != nil, m.isDevice(p), !present(p, size, flags&readOnly == 0):
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		m.host.add(&hostBlock{
			ctx: ctx, base: p, size: size, flags: flags&^readOnly | sys.CU_MEMHOSTREGISTER_DEVICEMAP,
			registered: true, readOnly: flags&readOnly != 0, id: m.newBufferID(),
		})
		return sys.CUDA_SUCCESS
	})
}

// present reports whether this process may read, and write, a whole range. The list of mappings is read again
// before the answer is no: it is read, or by an emulator made, while other threads change it.
func present(addr, size uintptr, write bool) bool {
	for range 3 {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil || covered(string(maps), addr, size, write) { // without the maps, it is taken to be there
			return true
		}
	}
	return false
}

// covered is present in a process with these maps.
func covered(maps string, addr, size uintptr, write bool) bool {
	next := addr
	for line := range strings.Lines(maps) {
		var base, end uintptr
		var rights string
		_, err := fmt.Sscanf(line, "%x-%x %s", &base, &end, &rights)
		if err != nil || end <= next {
			continue
		}
		if base > next || rights[0] != 'r' || write && rights[1] != 'w' {
			return false
		}
		if next = end; next >= addr+size {
			return true
		}
	}
	return false
}

func (m *machine) cuMemHostUnregister(p uintptr) sys.CUresult {
	return m.endBlock(p, func(b *hostBlock) sys.CUresult {
		switch {
		case p == 0, b != nil && (b.base != p || !b.registered):
			return sys.CUDA_ERROR_INVALID_VALUE
		case b == nil:
			return sys.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
		}
		return sys.CUDA_SUCCESS
	})
}

// cuMemHostGetDevicePointer_v2 returns the same address: addressing is unified.
func (m *machine) cuMemHostGetDevicePointer_v2(out *sys.CUdeviceptr, p uintptr, flags uint32) sys.CUresult {
	return withContext(m, m.current, func(_ *context) sys.CUresult {
		if b, _ := m.host.find(p); b == nil || flags != 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		return set(out, sys.CUdeviceptr(p))
	})
}

func (m *machine) cuMemHostGetFlags(out *uint32, p uintptr) sys.CUresult {
	return withContext(m, m.current, func(_ *context) sys.CUresult {
		b, _ := m.host.find(p)
		if b == nil {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		return set(out, b.flags)
	})
}
