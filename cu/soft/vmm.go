package soft

import (
	"slices"

	"github.com/gpufd/gpufd/cu/sys"
)

// granularity is what sizes and addresses are multiples of (D14).
const granularity = 2 << 20

// maxAddressSpace is more than any process gets, and maxAlignment more than
// cuMemAddressReserve tries to find.
const (
	maxAddressSpace = 1 << 47
	maxAlignment    = 1 << 57
)

// createDevice checks the arguments of cuMemCreate and returns the device.
func (m *machine) createDevice(prop *sys.CUmemAllocationProp) (*device, sys.CUresult) {
	if r := m.ready(); r != sys.CUDA_SUCCESS {
		return nil, r
	}
	if prop == nil || prop.Win32HandleMetaData != 0 || !validAllocFlags(&prop.AllocFlags) ||
		prop.RequestedHandleTypes&windowsHandles != 0 ||
		prop.Location.Type == sys.CU_MEM_LOCATION_TYPE_HOST || prop.Location.Type == sys.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT {
		return nil, sys.CUDA_ERROR_INVALID_VALUE
	}
	if prop.Location.Type == sys.CU_MEM_LOCATION_TYPE_HOST_NUMA {
		return m.createNode(prop)
	}
	return m.propDevice(prop)
}

// windowsHandles are handle types of another system.
const windowsHandles = sys.CU_MEM_HANDLE_TYPE_WIN32 | sys.CU_MEM_HANDLE_TYPE_WIN32_KMT

// validAllocFlags accepts flags that have no effect: compression, RDMA and usages
// that do not exist.
func validAllocFlags(f *sys.CUmemAllocationProp_allocFlags) bool {
	return f.CompressionType <= 1 && f.Usage&sys.CU_MEM_CREATE_USAGE_TILE_POOL == 0 && f.Reserved == [4]uint8{}
}

// propDevice checks the properties of memory and returns its device.
func (m *machine) propDevice(prop *sys.CUmemAllocationProp) (*device, sys.CUresult) {
	if r := m.ready(); r != sys.CUDA_SUCCESS {
		return nil, r
	}
	switch {
	case prop == nil, prop.Type != sys.CU_MEM_ALLOCATION_TYPE_PINNED:
		return nil, sys.CUDA_ERROR_INVALID_VALUE
	case prop.Location.Type == sys.CU_MEM_LOCATION_TYPE_DEVICE:
		return m.device(sys.CUdevice(prop.Location.Id))
	case prop.Location.Type >= sys.CU_MEM_LOCATION_TYPE_HOST && prop.Location.Type <= sys.CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return nil, sys.CUDA_ERROR_NOT_SUPPORTED // as the attributes of host memory say
	}
	return nil, sys.CUDA_ERROR_INVALID_VALUE
}

// cuMemGetAllocationGranularity ignores the properties of the memory.
func (m *machine) cuMemGetAllocationGranularity(out *uintptr, prop *sys.CUmemAllocationProp, option sys.CUmemAllocationGranularity_flags) sys.CUresult {
	return m.locked(func() sys.CUresult {
		if prop == nil || option > sys.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		return set(out, granularity)
	})
}

// cuMemCreate needs no context (D7). Asking for a fabric handle is refused
// like on a machine without an IMEX channel (D20), unless GPUFD_SOFT_IMEX=1.
func (m *machine) cuMemCreate(out *sys.CUmemGenericAllocationHandle, size uintptr, prop *sys.CUmemAllocationProp, flags uint64) sys.CUresult {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, r := m.createDevice(prop)
	if r != sys.CUDA_SUCCESS {
		return r
	}
	if out == nil || flags != 0 || size == 0 || size%granularity != 0 {
		return sys.CUDA_ERROR_INVALID_VALUE // D15
	}
	if prop.RequestedHandleTypes&sys.CU_MEM_HANDLE_TYPE_FABRIC != 0 && m.conf.imex == 0 {
		return sys.CUDA_ERROR_NOT_PERMITTED // D20
	}
	p, r := m.allocate(d, kindGeneric, uint64(size))
	if r != sys.CUDA_SUCCESS {
		return r
	}
	p.types = prop.RequestedHandleTypes & (sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | sys.CU_MEM_HANDLE_TYPE_FABRIC)
	return set(out, m.newAllocation(p))
}

// validTypes checks the ways that memory is to be shared in.
func validTypes(t sys.CUmemAllocationHandleType) sys.CUresult {
	const known = sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | windowsHandles | sys.CU_MEM_HANDLE_TYPE_FABRIC
	switch {
	case t&^known != 0:
		return sys.CUDA_ERROR_INVALID_VALUE
	case t&sys.CU_MEM_HANDLE_TYPE_FABRIC != 0:
		return sys.CUDA_ERROR_NOT_PERMITTED
	case t&^sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0:
		return sys.CUDA_ERROR_NOT_SUPPORTED
	}
	return sys.CUDA_SUCCESS
}

// findAllocation returns a handle's entry. For anything else but 0 the real
// driver kills the process, or uses what was released (D4).
func (m *machine) findAllocation(h sys.CUmemGenericAllocationHandle) (*handle, sys.CUresult) {
	return find(m, m.handles, h, kindAllocation, "allocation handle", sys.CUDA_ERROR_INVALID_VALUE)
}

// cuMemRelease may come before the memory is unmapped (D13).
func (m *machine) cuMemRelease(h sys.CUmemGenericAllocationHandle) sys.CUresult {
	return with(m, m.findAllocation, h, func(a *handle) sys.CUresult {
		if a.refs--; a.refs == 0 {
			delete(m.handles, h)
			m.drop(a.phys)
		}
		return sys.CUDA_SUCCESS
	})
}

func (m *machine) cuMemAddressReserve(out *sys.CUdeviceptr, size, align uintptr, hint sys.CUdeviceptr, flags uint64) sys.CUresult {
	return m.locked(func() sys.CUresult {
		if out == nil || flags != 0 || size == 0 || size%granularity != 0 || align&(align-1) != 0 {
			return sys.CUDA_ERROR_INVALID_VALUE // D15
		}
		align = max(align, granularity)
		if align > maxAlignment || uintptr(hint)%align != 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		if size >= maxAddressSpace || align >= maxAddressSpace || uint64(hint) >= maxAddressSpace {
			return sys.CUDA_ERROR_OUT_OF_MEMORY
		}
		v, err := m.space.add(size, align, uintptr(hint))
		if err != nil {
			return sys.CUDA_ERROR_OUT_OF_MEMORY
		}
		return set(out, sys.CUdeviceptr(v.base))
	})
}

// cuMemAddressFree wants a whole reservation that is not mapped (D3).
func (m *machine) cuMemAddressFree(ptr sys.CUdeviceptr, size uintptr) sys.CUresult {
	return m.locked(func() sys.CUresult {
		v := m.space.reservation(uintptr(ptr))
		if v == nil || v.allocated() || v.base != uintptr(ptr) || v.size != size || len(v.mappings) > 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		m.space.remove(v)
		return sys.CUDA_SUCCESS
	})
}

// findRange returns the reservation of cuMemAddressReserve that a range is in.
func (m *machine) findRange(ptr sys.CUdeviceptr, size uintptr) (*reservation, sys.CUresult) {
	if r := m.ready(); r != sys.CUDA_SUCCESS {
		return nil, r
	}
	v := m.space.reservation(uintptr(ptr))
	if v == nil || v.allocated() || size == 0 || !v.holds(uintptr(ptr), size) {
		return nil, sys.CUDA_ERROR_INVALID_VALUE
	}
	return v, sys.CUDA_SUCCESS
}

// cuMemMap maps whole allocations only (D1), and only where nothing is mapped
// in a reservation (D3).
func (m *machine) cuMemMap(ptr sys.CUdeviceptr, size, offset uintptr, h sys.CUmemGenericAllocationHandle, flags uint64) sys.CUresult {
	return with(m, m.findAllocation, h, func(a *handle) sys.CUresult {
		switch {
		case flags != 0 || size == 0:
			return sys.CUDA_ERROR_INVALID_VALUE
		case offset != 0 || uint64(size) != a.phys.size:
			return sys.CUDA_ERROR_NOT_SUPPORTED
		case uintptr(ptr)%granularity != 0:
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		v, r := m.findRange(ptr, size)
		if r != sys.CUDA_SUCCESS {
			return r
		}
		i, j, _, _ := v.whole(uintptr(ptr), size)
		if i != j {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		v.mappings = slices.Insert(v.mappings, i, m.newMapping(uintptr(ptr), size, a.phys))
		return sys.CUDA_SUCCESS
	})
}

// newMapping makes a mapping without rights (D5). It holds the
// memory.
func (m *machine) newMapping(base, size uintptr, p *physical) *mapping {
	p.hold()
	rights := make([]sys.CUmemAccess_flags, len(m.devices))
	return &mapping{base: base, size: size, phys: p, rights: rights, id: m.newBufferID()}
}

// cuMemUnmap takes whole mappings away, one or several. Unmapping again, and
// more than was mapped, succeeds on hardware (D4); here it is an error and a
// misuse. It does not wait for work in flight (D13), which dies of its next access
// (C40).
func (m *machine) cuMemUnmap(ptr sys.CUdeviceptr, size uintptr) sys.CUresult {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, r := m.findRange(ptr, size)
	if r != sys.CUDA_SUCCESS {
		return r
	}
	i, j, covered, cut := v.whole(uintptr(ptr), size)
	if cut {
		return sys.CUDA_ERROR_INVALID_VALUE // D3
	}
	if !covered {
		return m.misuse(sys.CUDA_ERROR_INVALID_VALUE, "cuMemUnmap(%#x, %d): not all of it is mapped", uint64(ptr), size)
	}
	hide(v.mappings[i:j])
	m.end(v, "unmapped", v.mappings[i:j]...)
	v.mappings = slices.Delete(v.mappings, i, j)
	return sys.CUDA_SUCCESS
}
