package soft

import "github.com/gpufd/gpufd/cu/sys"

// cuMemSetAccess sets rights of devices over one or several whole mappings
// without a hole: all of them or, with an error, none.
func (m *machine) cuMemSetAccess(ptr sys.CUdeviceptr, size uintptr, desc *sys.CUmemAccessDesc, count uintptr) sys.CUresult {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, r := m.findRange(ptr, size)
	if r != sys.CUDA_SUCCESS {
		return r
	}
	i, j, covered, cut := v.whole(uintptr(ptr), size)
	if !covered || cut || desc == nil || count == 0 || count > maxDescs {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	descs := descsAt(desc, count)
	for _, d := range descs {
		if r := m.validAccess(d); r != sys.CUDA_SUCCESS {
			return r
		}
	}
	for _, p := range v.mappings[i:j] {
		for _, d := range descs {
			p.rights[d.Location.Id] = d.Flags
		}
	}
	return sys.CUDA_SUCCESS
}

// maxDescs bounds what cuMemSetAccess reads: more locations than there can be
// devices make no sense.
const maxDescs = 1 << 10

// validAccess wants a visible device and rights that exist. Memory of a device
// is not for the host.
func (m *machine) validAccess(d sys.CUmemAccessDesc) sys.CUresult {
	if r := m.validLocation(&d.Location); r != sys.CUDA_SUCCESS {
		return r
	}
	switch d.Flags {
	case sys.CU_MEM_ACCESS_FLAGS_PROT_NONE, sys.CU_MEM_ACCESS_FLAGS_PROT_READ, sys.CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
		return sys.CUDA_SUCCESS
	}
	return sys.CUDA_ERROR_INVALID_VALUE
}

// validLocation wants a visible device.
func (m *machine) validLocation(l *sys.CUmemLocation) sys.CUresult {
	if l == nil || l.Type != sys.CU_MEM_LOCATION_TYPE_DEVICE {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	_, r := m.device(sys.CUdevice(l.Id))
	return r
}

func (m *machine) cuMemGetAccess(out *uint64, location *sys.CUmemLocation, ptr sys.CUdeviceptr) sys.CUresult {
	r := m.lock()
	defer m.mu.Unlock()
	if r = firstError(r, m.validLocation(location)); r != sys.CUDA_SUCCESS {
		return r
	}
	p := m.space.mapping(uintptr(ptr))
	if p == nil || p.phys.kind != kindGeneric {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	return set(r, out, uint64(p.rights[location.Id]))
}
