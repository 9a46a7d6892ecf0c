package soft

import (
	"github.com/ebitengine/purego"
	"github.com/gpufd/gpufd/cu/sys"
)

// The resources of a multiprocessor.
const (
	threadsPerSM   = 2048
	blocksPerSM    = 32
	registersPerSM = 65536
	warp           = 32
	sharedUnit     = 128
)

// blocksOf returns how many blocks of that many threads, each with dynamic bytes
// of dynamic shared memory, a multiprocessor runs at once.
func (f *function) blocksOf(threads int, dynamic uintptr) int {
	threads = (threads + warp - 1) / warp * warp
	if threads <= 0 || threads > maxThreads(&f.Kernel) || dynamic > uintptr(f.attrs.dynamic()) {
		return 0
	}
	shared := int(roundUp(uintptr(f.Shared)+dynamic+sharedReserved, sharedUnit))
	return min(blocksPerSM, threadsPerSM/threads, registersPerSM/(registers(&f.Kernel)*threads), sharedPerSM/shared)
}

// multiprocessors is how many a device has.
func multiprocessors() int { return int(attributes[sys.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT]) }

func (m *machine) cuOccupancyMaxActiveBlocksPerMultiprocessor(out *int32, h sys.CUfunction, threads int32, dynamic uintptr) sys.CUresult {
	return m.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, h, threads, dynamic, 0)
}

func (m *machine) cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out *int32, h sys.CUfunction, threads int32, dynamic uintptr, flags uint32) sys.CUresult {
	return with(m, m.findFunction, h, func(f *function) sys.CUresult {
		if threads <= 0 || flags&^uint32(sys.CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) != 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		return set(out, int32(f.blocksOf(int(threads), dynamic)))
	})
}

// cuOccupancyAvailableDynamicSMemPerBlock returns how much dynamic shared memory
// each of several blocks can have on one multiprocessor.
func (m *machine) cuOccupancyAvailableDynamicSMemPerBlock(out *uintptr, h sys.CUfunction, blocks, threads int32) sys.CUresult {
	return with(m, m.findFunction, h, func(f *function) sys.CUresult {
		if threads <= 0 || blocks <= 0 || int(blocks) > f.blocksOf(int(threads), 0) {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		each := sharedPerSM/int(blocks)/sharedUnit*sharedUnit - f.Shared
		return set(out, uintptr(max(0, min(int(f.attrs.dynamic()), each))))
	})
}

func (m *machine) cuOccupancyMaxPotentialBlockSize(grid, block *int32, h sys.CUfunction, need uintptr, dynamic uintptr, limit int32) sys.CUresult {
	return m.cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, h, need, dynamic, limit, 0)
}

// cuOccupancyMaxPotentialBlockSizeWithFlags looks for the largest block that
// fills a device best. It calls the caller's function, which says what a block
// needs, unlocked.
func (m *machine) cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block *int32, h sys.CUfunction, need uintptr, dynamic uintptr, limit int32, flags uint32) sys.CUresult {
	m.mu.Lock()
	f, r := m.findFunction(h)
	m.mu.Unlock()
	if r != sys.CUDA_SUCCESS {
		return r
	}
	if grid == nil || block == nil || limit < 0 || flags&^uint32(sys.CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) != 0 {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	most := maxThreads(&f.Kernel)
	if limit > 0 {
		most = min(most, int(limit))
	}
	best, size, blocks := 0, 0, 0
	for threads := most; threads > 0; threads = (threads - 1) / warp * warp {
		shared := dynamic
		if need != 0 {
			shared, _, _ = purego.SyscallN(need, uintptr(threads))
		}
		m.mu.Lock()
		n := f.blocksOf(threads, shared)
		m.mu.Unlock()
		if n*threads > best {
			best, size, blocks = n*threads, threads, n
		}
	}
	*grid, *block = int32(blocks*multiprocessors()), int32(size)
	return sys.CUDA_SUCCESS
}
