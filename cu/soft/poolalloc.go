package soft

import "github.com/gpufd/gpufd/cu/sys"

func (m *machine) cuMemAllocAsync(out *sys.CUdeviceptr, size uintptr, h sys.CUstream) sys.CUresult {
	return with(m, m.uncapturedStream, h, func(s *stream) sys.CUresult { return m.allocPooled(out, size, m.currentPool(s.ctx.dev), s) })
}

func (m *machine) cuMemAllocFromPoolAsync(out *sys.CUdeviceptr, size uintptr, hPool sys.CUmemoryPool, h sys.CUstream) sys.CUresult {
	return withBoth(m, m.uncapturedStream, h, m.findPool, hPool, func(s *stream, p *pool) sys.CUresult {
		if p.imported() {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		return m.allocPooled(out, size, p, s)
	})
}

// allocPooled makes an allocation for a stream. The address is valid at once, for
// every stream: use in the wrong order shows when the memory is freed. 0 bytes
// have no address, and no error.
func (m *machine) allocPooled(out *sys.CUdeviceptr, size uintptr, p *pool, s *stream) sys.CUresult {
	if out == nil {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	if size == 0 {
		return set(out, 0)
	}
	if uint64(size) > p.limit || uint64(size) > p.dev.memory {
		return sys.CUDA_ERROR_OUT_OF_MEMORY
	}
	b, r := m.takeBlock(p, s, roundUp(size, linearUnit))
	if r != sys.CUDA_SUCCESS {
		return r
	}
	v, r := m.place(p, b.phys, size)
	if r != sys.CUDA_SUCCESS {
		p.idle = append(p.idle, b)
		return r
	}
	*out = sys.CUdeviceptr(v.base)
	return r
}

// place gives memory of a pool addresses, after which nothing is mapped.
func (m *machine) place(p *pool, phys *physical, size uintptr) (*reservation, sys.CUresult) {
	v, err := m.space.add(roundUp(size, linearUnit)+linearUnit, linearUnit, 0)
	if err != nil {
		return nil, sys.CUDA_ERROR_OUT_OF_MEMORY
	}
	v.pool = p
	at := m.newMapping(v.base, size, phys)
	at.rights = p.rights
	v.mappings = append(v.mappings, at)
	p.live++
	p.used.add(uint64(size))
	return v, sys.CUDA_SUCCESS
}

func roundUp(n, unit uintptr) uintptr { return (n + unit - 1) / unit * unit }

// takeBlock takes a block of at least size bytes for a stream out of the pool: an
// idle one, else a new one, else one that the stream has to wait for.
func (m *machine) takeBlock(p *pool, s *stream, size uintptr) (*poolBlock, sys.CUresult) {
	if b := p.take(uint64(size), func(b *poolBlock) bool {
		return b.stream == s || b.free == nil && p.reuse[reuseOpportunistic]
	}); b != nil {
		return b, sys.CUDA_SUCCESS
	}
	b, r := m.newBlock(p, uint64(size))
	if r != sys.CUDA_ERROR_OUT_OF_MEMORY || !p.reuse[reuseInternal] {
		return b, r
	}
	if b = p.take(uint64(size), func(*poolBlock) bool { return true }); b == nil {
		return nil, r
	}
	m.enqueue(s, &op{deps: []*op{b.free}})
	return b, sys.CUDA_SUCCESS
}

// take removes the smallest idle block that is large enough, unless that would
// waste more than half of it.
func (p *pool) take(size uint64, may func(*poolBlock) bool) *poolBlock {
	best := -1
	for i, b := range p.idle {
		fits := b.phys.size >= size && b.phys.size <= 2*size
		if fits && may(b) && (best < 0 || b.phys.size < p.idle[best].phys.size) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	b := p.idle[best]
	p.idle = append(p.idle[:best], p.idle[best+1:]...)
	return b
}

// newBlock adds memory of the device to the pool.
func (m *machine) newBlock(p *pool, size uint64) (*poolBlock, sys.CUresult) {
	if p.reserved.now+size > p.limit {
		m.shrink(p, 0)
	}
	if p.reserved.now+size > p.limit {
		return nil, sys.CUDA_ERROR_OUT_OF_MEMORY
	}
	t := trailer{kind: kindBlock, ordinal: p.dev.ordinal, size: size, uuid: p.dev.uuid}
	if p.control != nil {
		t.pool = p.control.id
	}
	phys, r := m.allocateAs(p.dev, t)
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	phys.hold() // the pool's
	p.reserved.add(size)
	return &poolBlock{phys: phys}, r
}

// cuMemFreeAsync frees memory of a pool, or of cuMemAlloc, in the order of a
// stream. No later call may use it; work queued before that point may.
func (m *machine) cuMemFreeAsync(ptr sys.CUdeviceptr, h sys.CUstream) sys.CUresult {
	return with(m, m.uncapturedStream, h, func(s *stream) sys.CUresult {
		if ptr == 0 {
			return sys.CUDA_SUCCESS
		}
		v := m.allocationAt(ptr)
		if v == nil {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		b := m.forget(v)
		o := m.enqueue(s, &op{release: func() { m.endAllocation(v, b) }})
		if b != nil {
			b.stream, b.free = s, o
		}
		return sys.CUDA_SUCCESS
	})
}

// allocationAt returns what an allocation made at ptr, or nil.
func (m *machine) allocationAt(ptr sys.CUdeviceptr) *reservation {
	v := m.space.reservation(uintptr(ptr))
	if v == nil || !v.allocated() || v.freed || v.fixed || v.opened != nil || v.base != uintptr(ptr) {
		return nil
	}
	return v
}

// forget begins a free: nobody can name the memory any more. It returns the
// block that goes back to the pool, if there is one.
func (m *machine) forget(v *reservation) *poolBlock {
	v.freed = true
	p := v.pool
	if p == nil {
		return nil
	}
	p.used.sub(uint64(v.mappings[0].size))
	phys := v.mappings[0].phys
	if p.imported() {
		delete(p.imports, phys.id)
		return nil
	}
	b := &poolBlock{phys: phys}
	p.idle = append(p.idle, b)
	return b
}

// endAllocation ends a free: nothing in its order uses the memory any more.
func (m *machine) endAllocation(v *reservation, b *poolBlock) {
	p := v.pool
	m.freeReservation(v)
	if b != nil {
		b.free = nil
	}
	if p != nil {
		p.live--
		m.settle(p)
	}
}
