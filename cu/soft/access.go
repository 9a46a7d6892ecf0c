package soft

import "github.com/gpufd/gpufd/cu/sys"

// cuMemSetAccess sets rights of devices over whole mappings, side by side: all of
// them or, with an error, none. At a hole between two it stops without an error,
// as on hardware; here that is a misuse.
func (m *machine) cuMemSetAccess(ptr sys.CUdeviceptr, size uintptr, desc *sys.CUmemAccessDesc, count uintptr) sys.CUresult {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, r := m.findRange(ptr, size)
	if r != sys.CUDA_SUCCESS {
		return r
	}
	mappings := v.between(uintptr(ptr), size)
	if mappings == nil || desc == nil || count == 0 || count > maxDescs {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	descs := array(desc, count)
	for _, d := range descs {
		if r := m.mayMap(d, mappings); r != sys.CUDA_SUCCESS {
			return r
		}
	}
	if m.outOfReach(mappings, descs) {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	next := uintptr(ptr)
	for _, p := range mappings {
		if p.base != next {
			return m.misuse(sys.CUDA_SUCCESS, "cuMemSetAccess(%#x, %d): nothing is mapped at %#x", uint64(ptr), size, next)
		}
		for _, d := range descs {
			if r := p.allow(d); r != sys.CUDA_SUCCESS {
				return r
			}
		}
		m.withdraw(p.base, p.size) // kernels that run have other rights from now on
		next = p.end()
	}
	return sys.CUDA_SUCCESS
}

// outOfReach reports whether a device would get rights to memory that it has no
// link to. Nobody has seen what the real driver says to that.
func (m *machine) outOfReach(mappings []*mapping, descs []sys.CUmemAccessDesc) bool {
	for _, p := range mappings {
		for _, d := range descs {
			if p.phys.host() {
				continue // every device reaches that
			}
			if to := m.devices[d.Location.Id]; to != p.phys.dev && !m.linked(to, p.phys.dev) {
				return true
			}
		}
	}
	return false
}

// between returns the mappings in a range that begins with one and ends with
// one, or nil.
func (r *reservation) between(addr, size uintptr) []*mapping {
	i, j, _, cut := r.whole(addr, size)
	if i == j || cut || r.mappings[i].base != addr || r.mappings[j-1].end() != addr+size {
		return nil
	}
	return r.mappings[i:j]
}

// maxDescs limits what cuMemSetAccess reads: more locations than there can be
// devices make no sense.
const maxDescs = 1 << 10

// mayMap returns whether mappings can have the rights: the host cannot have
// memory of a device.
func (m *machine) mayMap(d sys.CUmemAccessDesc, mappings []*mapping) sys.CUresult {
	switch d.Location.Type {
	case sys.CU_MEM_LOCATION_TYPE_HOST, sys.CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return mayShow(d, mappings)
	}
	if m.validAccess(d) != sys.CUDA_SUCCESS {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	return sys.CUDA_SUCCESS
}

// validAccess refuses devices that are not visible and rights that do not exist.
func (m *machine) validAccess(d sys.CUmemAccessDesc) sys.CUresult {
	if r := m.validLocation(&d.Location); r != sys.CUDA_SUCCESS {
		return r
	}
	return validRights(d.Flags)
}

// validRights refuses rights that do not exist.
func validRights(f sys.CUmemAccess_flags) sys.CUresult {
	switch f {
	case sys.CU_MEM_ACCESS_FLAGS_PROT_NONE, sys.CU_MEM_ACCESS_FLAGS_PROT_READ, sys.CU_MEM_ACCESS_FLAGS_PROT_READWRITE:
		return sys.CUDA_SUCCESS
	}
	return sys.CUDA_ERROR_INVALID_VALUE
}

// validLocation refuses devices that are not visible.
func (m *machine) validLocation(l *sys.CUmemLocation) sys.CUresult {
	if l == nil || l.Type != sys.CU_MEM_LOCATION_TYPE_DEVICE {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	_, r := m.device(sys.CUdevice(l.Id))
	return r
}

// cuMemGetAccess has no rights for memory that cuMemSetAccess is not for.
func (m *machine) cuMemGetAccess(out *uint64, location *sys.CUmemLocation, ptr sys.CUdeviceptr) sys.CUresult {
	return m.locked(func() sys.CUresult {
		p := m.space.mapping(uintptr(ptr))
		b, _ := m.host.find(uintptr(ptr))
		switch {
		case location == nil, p == nil && b == nil:
			return sys.CUDA_ERROR_INVALID_VALUE
		case p == nil:
			return set(out, 0)
		}
		flags, r := m.rightsOf(p, location)
		if r != sys.CUDA_SUCCESS {
			return r
		}
		return set(out, uint64(flags))
	})
}

// rightsOf returns what a location may do with a mapping. For the host it returns
// what the memory's device may do, or the host itself with memory of its own.
func (m *machine) rightsOf(p *mapping, l *sys.CUmemLocation) (sys.CUmemAccess_flags, sys.CUresult) {
	switch l.Type {
	case sys.CU_MEM_LOCATION_TYPE_HOST, sys.CU_MEM_LOCATION_TYPE_HOST_NUMA:
		if p.phys.host() && (l.Type == sys.CU_MEM_LOCATION_TYPE_HOST || l.Id == 0) {
			return p.host, sys.CUDA_SUCCESS
		}
	}
	switch l.Type {
	case sys.CU_MEM_LOCATION_TYPE_HOST:
		return p.rights[m.number(p.phys.dev)], sys.CUDA_SUCCESS
	case sys.CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return sys.CU_MEM_ACCESS_FLAGS_PROT_NONE, sys.CUDA_SUCCESS
	case sys.CU_MEM_LOCATION_TYPE_DEVICE:
		if _, r := m.device(sys.CUdevice(l.Id)); r == sys.CUDA_SUCCESS {
			return p.rights[l.Id], r
		}
	}
	return 0, sys.CUDA_ERROR_INVALID_DEVICE
}
