package soft

import (
	"slices"

	"github.com/gpufd/gpufd/cu/sys"
)

// A pool is memory of a device that streams allocate and free in their order. It
// belongs to the process, and outlives contexts. While there is memory of it, it
// also outlives its destruction.
//
// Each allocation has a block, a file of the store, and its own addresses. A
// freed block goes back to the pool, idle. The device gets it back when the pool
// holds more than its threshold and somebody synchronises.
type pool struct {
	handle    sys.CUmemoryPool
	dev       *device
	types     sys.CUmemAllocationHandleType // that it may be exported as
	exported  bool                          // once at least
	limit     uint64                        // bytes that it may hold
	rights    []sys.CUmemAccess_flags       // of all its memory, by visible device
	reuse     [3]bool                       // by attribute, from reuseFirst on
	threshold uint64
	reserved  gauge
	used      gauge
	idle      []*poolBlock
	live      int // allocations that have not ended
	destroyed bool
	control   *control // nil if it cannot be shared
	imports   map[[8]byte]*reservation
}

// A poolBlock is unused memory of a pool, or memory that stream is going to free.
type poolBlock struct {
	phys   *physical
	stream *stream // that it was freed in
	free   *op     // the free, while that is not done
}

// A gauge is a number of bytes and the most that it was.
type gauge struct{ now, high uint64 }

func (g *gauge) add(n uint64) {
	g.now += n
	g.high = max(g.high, g.now)
}

func (g *gauge) sub(n uint64) { g.now -= n }

// The attributes that say what may be reused.
const (
	reuseFirst         = sys.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
	reuseOpportunistic = sys.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC - reuseFirst
	reuseInternal      = sys.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES - reuseFirst
)

// newPool makes a pool that holds nothing.
func (m *machine) newPool(d *device) *pool {
	p := &pool{
		handle: sys.CUmemoryPool(m.newHandle(kindPool, 0)),
		dev:    d,
		limit:  d.memory,
		rights: make([]sys.CUmemAccess_flags, len(m.devices)),
		reuse:  [3]bool{true, true, true},
	}
	p.rights[m.number(d)] = sys.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	m.pools[p.handle] = p
	return p
}

// imported reports whether another process, or another import, owns the pool.
func (p *pool) imported() bool { return p.imports != nil }

// defaultPool returns the pool that a device always has.
func (m *machine) defaultPool(d *device) *pool {
	if d.defaultPool == nil {
		d.defaultPool = m.newPool(d)
	}
	return d.defaultPool
}

// currentPool returns the pool that cuMemAllocAsync takes from.
func (m *machine) currentPool(d *device) *pool {
	if d.pool == nil || d.pool.destroyed {
		return m.defaultPool(d)
	}
	return d.pool
}

// findPool returns a pool by its handle.
func (m *machine) findPool(h sys.CUmemoryPool) (*pool, sys.CUresult) {
	return find(m, m.pools, h, kindPool, "memory pool", sys.CUDA_ERROR_INVALID_VALUE)
}

func (m *machine) cuMemPoolCreate(out *sys.CUmemoryPool, props *sys.CUmemPoolProps) sys.CUresult {
	return m.locked(func() sys.CUresult {
		if out == nil || props == nil {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		d, r := m.propDevice(&sys.CUmemAllocationProp{Type: props.AllocType, Location: props.Location})
		if r = firstError(r, m.validProps(props), validTypes(props.HandleTypes)); r != sys.CUDA_SUCCESS {
			return r
		}
		var c *control
		if props.HandleTypes != 0 {
			if c, r = m.newControl(d, trailer{kind: kindControl}); r != sys.CUDA_SUCCESS {
				return r
			}
		}
		p := m.newPool(d)
		p.types, p.control = props.HandleTypes, c
		if props.MaxSize != 0 {
			p.limit = uint64(props.MaxSize)
		}
		return set(out, p.handle)
	})
}

// validProps checks the fields that came later: before, they were reserved and
// had to be 0.
func (m *machine) validProps(props *sys.CUmemPoolProps) sys.CUresult {
	version := m.config().version
	switch {
	case props.Reserved != [54]uint8{}, props.Win32SecurityAttributes != 0,
		props.MaxSize != 0 && version < 12020,
		props.Usage != 0 && version < 12060,
		props.Usage&^sys.CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS != 0:
		return sys.CUDA_ERROR_INVALID_VALUE
	case props.Usage != 0:
		return sys.CUDA_ERROR_NOT_SUPPORTED
	}
	return sys.CUDA_SUCCESS
}

// cuMemPoolDestroy leaves the pool's memory to its users, as documented. The real
// driver breaks its own memory then. Default pools stay.
func (m *machine) cuMemPoolDestroy(h sys.CUmemoryPool) sys.CUresult {
	return m.locked(func() sys.CUresult {
		p := m.pools[h]
		if p == nil && h != 0 && !m.isA(kindPool, uint64(h)) {
			return m.misuse(sys.CUDA_ERROR_INVALID_VALUE, "cuMemPoolDestroy: %#x is no memory pool", uint64(h))
		}
		if p == nil || p == p.dev.defaultPool {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		if p.used.now != 0 {
			m.misuse(sys.CUDA_SUCCESS, "cuMemPoolDestroy: %d bytes of the pool are not freed", p.used.now)
		}
		p.destroyed = true
		delete(m.pools, h)
		m.settle(p)
		return sys.CUDA_SUCCESS
	})
}

// settle gives back what a destroyed pool no longer needs.
func (m *machine) settle(p *pool) {
	if !p.destroyed {
		return
	}
	m.shrink(p, 0)
	if p.live == 0 && p.control != nil {
		m.dropControl(p.control)
		p.control = nil
	}
}

// shrink gives idle blocks back to the device while the pool still holds keep
// bytes without them. It returns how many bytes went.
func (m *machine) shrink(p *pool, keep uint64) (released uint64) {
	p.idle = slices.DeleteFunc(p.idle, func(b *poolBlock) bool {
		if b.free != nil || p.reserved.now-b.phys.size < keep {
			return false
		}
		p.reserved.sub(b.phys.size)
		released += b.phys.size
		m.drop(b.phys)
		return true
	})
	return released
}

// shrinkAll makes the device's pools give back what they hold beyond most, or their
// threshold if that is less. It returns how many bytes went.
func (m *machine) shrinkAll(d *device, most uint64) (released uint64) {
	for _, p := range m.pools {
		if p.dev == d {
			released += m.shrink(p, min(p.threshold, most))
		}
	}
	return released
}

func (m *machine) cuMemPoolTrimTo(h sys.CUmemoryPool, keep uintptr) sys.CUresult {
	return with(m, m.findPool, h, func(p *pool) sys.CUresult {
		m.shrink(p, uint64(keep))
		return sys.CUDA_SUCCESS
	})
}

// gaugeOf returns the gauge of an attribute, and whether its high is meant; nil
// for another attribute.
func (p *pool) gaugeOf(a sys.CUmemPool_attribute) (g *gauge, high bool) {
	switch a {
	case sys.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, sys.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		return &p.reserved, a == sys.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
	case sys.CU_MEMPOOL_ATTR_USED_MEM_CURRENT, sys.CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return &p.used, a == sys.CU_MEMPOOL_ATTR_USED_MEM_HIGH
	}
	return nil, false
}

// isReuse reports whether an attribute is one of those that hold an int.
func isReuse(a sys.CUmemPool_attribute) bool {
	return a >= reuseFirst && a-reuseFirst <= reuseInternal
}

func (m *machine) cuMemPoolGetAttribute(h sys.CUmemoryPool, a sys.CUmemPool_attribute, value *uint64) sys.CUresult {
	return with(m, m.findPool, h, func(p *pool) sys.CUresult {
		g, high := p.gaugeOf(a)
		switch {
		case isReuse(a):
			return set(asInt32(value), int32(asWord(p.reuse[a-reuseFirst])))
		case a == sys.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
			return set(value, p.threshold)
		case g == nil:
			return sys.CUDA_ERROR_INVALID_VALUE
		case high:
			return set(value, g.high)
		}
		return set(value, g.now)
	})
}

// cuMemPoolSetAttribute can set a high only to 0, which means the present value.
// The real driver crashes without a value.
func (m *machine) cuMemPoolSetAttribute(h sys.CUmemoryPool, a sys.CUmemPool_attribute, value *uint64) sys.CUresult {
	return with(m, m.findPool, h, func(p *pool) sys.CUresult {
		if value == nil {
			return m.misuse(sys.CUDA_ERROR_INVALID_VALUE, "cuMemPoolSetAttribute(%v) without a value", a)
		}
		g, high := p.gaugeOf(a)
		switch {
		case isReuse(a):
			p.reuse[a-reuseFirst] = *asInt32(value) != 0
		case a == sys.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
			p.threshold = *value
		case g == nil, !high, *value != 0:
			return sys.CUDA_ERROR_INVALID_VALUE
		default:
			g.high = g.now
		}
		return sys.CUDA_SUCCESS
	})
}

// cuMemPoolSetAccess sets rights over all memory of the pool, now and later:
// all of them or, with an error, none. The pool's own device keeps its own.
func (m *machine) cuMemPoolSetAccess(h sys.CUmemoryPool, desc *sys.CUmemAccessDesc, count uintptr) sys.CUresult {
	return with(m, m.findPool, h, func(p *pool) sys.CUresult {
		if desc == nil || count == 0 || count > maxDescs {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		descs := array(desc, count)
		for _, d := range descs {
			if r := m.validAccess(d); r != sys.CUDA_SUCCESS {
				return r
			}
			own := sys.CUdevice(d.Location.Id) == m.number(p.dev)
			if own && d.Flags != sys.CU_MEM_ACCESS_FLAGS_PROT_READWRITE {
				return sys.CUDA_ERROR_INVALID_VALUE
			}
		}
		for _, d := range descs {
			p.rights[d.Location.Id] = d.Flags
		}
		return sys.CUDA_SUCCESS
	})
}

func (m *machine) cuMemPoolGetAccess(out *sys.CUmemAccess_flags, h sys.CUmemoryPool, location *sys.CUmemLocation) sys.CUresult {
	return with(m, m.findPool, h, func(p *pool) sys.CUresult {
		if r := m.validLocation(location); r != sys.CUDA_SUCCESS {
			return r
		}
		return set(out, p.rights[location.Id])
	})
}

func (m *machine) cuDeviceGetDefaultMemPool(out *sys.CUmemoryPool, dev sys.CUdevice) sys.CUresult {
	return m.poolOf(out, dev, m.defaultPool)
}

func (m *machine) cuDeviceGetMemPool(out *sys.CUmemoryPool, dev sys.CUdevice) sys.CUresult {
	return m.poolOf(out, dev, m.currentPool)
}

// poolOf stores the handle of the pool that get finds.
func (m *machine) poolOf(out *sys.CUmemoryPool, dev sys.CUdevice, get func(*device) *pool) sys.CUresult {
	return with(m, m.device, dev, func(d *device) sys.CUresult { return set(out, get(d).handle) })
}

// cuDeviceSetMemPool requires a pool of that device that can allocate.
func (m *machine) cuDeviceSetMemPool(dev sys.CUdevice, h sys.CUmemoryPool) sys.CUresult {
	return withBoth(m, m.device, dev, m.findPool, h, func(d *device, p *pool) sys.CUresult {
		if p.imported() || p.dev != d {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		d.pool = p
		return sys.CUDA_SUCCESS
	})
}

// The same by location, as of CUDA 13.0.

func (m *machine) cuMemGetDefaultMemPool(out *sys.CUmemoryPool, l *sys.CUmemLocation, t sys.CUmemAllocationType) sys.CUresult {
	return m.atLocation(l, t, func(dev sys.CUdevice) sys.CUresult { return m.cuDeviceGetDefaultMemPool(out, dev) })
}

func (m *machine) cuMemGetMemPool(out *sys.CUmemoryPool, l *sys.CUmemLocation, t sys.CUmemAllocationType) sys.CUresult {
	return m.atLocation(l, t, func(dev sys.CUdevice) sys.CUresult { return m.cuDeviceGetMemPool(out, dev) })
}

func (m *machine) cuMemSetMemPool(l *sys.CUmemLocation, t sys.CUmemAllocationType, h sys.CUmemoryPool) sys.CUresult {
	return m.atLocation(l, t, func(dev sys.CUdevice) sys.CUresult { return m.cuDeviceSetMemPool(dev, h) })
}

// atLocation calls f with the device that a location is.
func (m *machine) atLocation(l *sys.CUmemLocation, t sys.CUmemAllocationType, f func(sys.CUdevice) sys.CUresult) sys.CUresult {
	var dev sys.CUdevice
	r := m.locked(func() sys.CUresult {
		if l == nil {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		d, r := m.propDevice(&sys.CUmemAllocationProp{Type: t, Location: *l})
		dev = m.number(d)
		return r
	})
	if r != sys.CUDA_SUCCESS {
		return r
	}
	return f(dev)
}
