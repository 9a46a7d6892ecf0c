package soft

import (
	"math/bits"

	"github.com/gpufd/gpufd/cu/sys"
)

// cuMemAlloc_v2 makes memory that belongs to the context. Nothing is ever mapped
// right behind it, so a copy past its end is an error.
func (m *machine) cuMemAlloc_v2(out *sys.CUdeviceptr, size uintptr) sys.CUresult {
	return withContext(m, m.current, func(ctx *context) sys.CUresult {
		switch r := m.refuseUnsafe(); {
		case r != sys.CUDA_SUCCESS:
			return r
		case out == nil || size == 0:
			return sys.CUDA_ERROR_INVALID_VALUE
		case uint64(size) > ctx.dev.memory:
			return sys.CUDA_ERROR_OUT_OF_MEMORY
		}
		v, r := m.newLinear(ctx, size)
		if r == sys.CUDA_SUCCESS {
			*out = sys.CUdeviceptr(v.base)
		}
		return r
	})
}

// pitchUnit divides all pitches.
const pitchUnit = 512

// cuMemAllocPitch_v2 is cuMemAlloc for rows.
func (m *machine) cuMemAllocPitch_v2(out *sys.CUdeviceptr, pitch *uintptr, width, height uintptr, element uint32) sys.CUresult {
	if r := withContext(m, m.current, func(*context) sys.CUresult { return sys.CUDA_SUCCESS }); r != sys.CUDA_SUCCESS {
		return r
	}
	if out == nil || pitch == nil || width == 0 || height == 0 || element != 4 && element != 8 && element != 16 {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	p := (width + pitchUnit - 1) / pitchUnit * pitchUnit
	over, size := bits.Mul64(uint64(p), uint64(height))
	if p < width || over != 0 {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	r := m.cuMemAlloc_v2(out, uintptr(size))
	if r == sys.CUDA_SUCCESS {
		*pitch = p
	}
	return r
}

// newLinear makes memory and the one mapping of it.
func (m *machine) newLinear(ctx *context, size uintptr) (*reservation, sys.CUresult) {
	rounded := roundUp(size, linearUnit)
	p, r := m.allocate(ctx.dev, kindLinear, uint64(rounded))
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	return m.placeLinear(ctx, p, size)
}

// placeLinear maps new memory in a reservation that a context owns.
func (m *machine) placeLinear(ctx *context, p *physical, size uintptr) (*reservation, sys.CUresult) {
	v, err := m.space.add(uintptr(p.size)+linearUnit, linearUnit, 0)
	if err != nil {
		p.hold()
		m.drop(p)
		return nil, sys.CUDA_ERROR_OUT_OF_MEMORY
	}
	v.linear = ctx
	v.mappings = append(v.mappings, m.newMapping(v.base, size, p))
	return v, sys.CUDA_SUCCESS
}

// cuMemFree_v2 takes the start of memory of cuMemAlloc or of a pool, or 0; it
// refuses anything else without harm (D16). It needs no current context. For
// memory of cuMemAlloc it first waits for the work of its context.
func (m *machine) cuMemFree_v2(ptr sys.CUdeviceptr) sys.CUresult {
	return m.afterWork(func() (*context, sys.CUresult) {
		r, v := m.anywhere(), m.allocationAt(ptr)
		switch {
		case r != sys.CUDA_SUCCESS || ptr == 0:
			return nil, r
		case v == nil:
			return nil, sys.CUDA_ERROR_INVALID_VALUE
		case v.pool != nil:
			m.endAllocation(v, m.forget(v)) // which does not wait
			return nil, r
		}
		return v.linear, r
	}, func() sys.CUresult {
		v := m.allocationAt(ptr)
		if v == nil {
			return m.misuse(sys.CUDA_ERROR_INVALID_VALUE, "cuMemFree(%#x) twice at once", uint64(ptr))
		}
		m.freeReservation(v)
		return sys.CUDA_SUCCESS
	})
}

// freeReservation frees the memory of an allocation and its addresses.
func (m *machine) freeReservation(v *reservation) {
	m.end(v, "freed", v.mappings...)
	m.space.remove(v)
}

// cuMemGetInfo_v2 counts what all processes use. Either result may be left out.
func (m *machine) cuMemGetInfo_v2(free, total *uintptr) sys.CUresult {
	return withContext(m, m.current, func(ctx *context) sys.CUresult {
		used, err := m.store.used(ctx.dev.ordinal)
		if err != nil {
			return sys.CUDA_ERROR_OPERATING_SYSTEM
		}
		setOptional(free, uintptr(ctx.dev.memory-min(used, ctx.dev.memory)))
		setOptional(total, uintptr(ctx.dev.memory))
		return sys.CUDA_SUCCESS
	})
}

// cuMemGetAddressRange_v2 finds memory of cuMemAlloc, pinned memory, or a mapping
// that a device may use. Either result may be left out, and without both nothing
// is looked for.
func (m *machine) cuMemGetAddressRange_v2(base *sys.CUdeviceptr, size *uintptr, ptr sys.CUdeviceptr) sys.CUresult {
	return withContext(m, m.current, func(*context) sys.CUresult {
		if base == nil && size == nil {
			return sys.CUDA_SUCCESS
		}
		p := m.pointee(uintptr(ptr))
		if !p.there() || p.mapping != nil && !p.mapping.open() {
			return sys.CUDA_ERROR_NOT_FOUND
		}
		start, n := p.extent()
		setOptional(base, sys.CUdeviceptr(start))
		setOptional(size, n)
		return sys.CUDA_SUCCESS
	})
}
