package soft

import (
	"slices"

	"github.com/gpufd/gpufd/cu/sys"
)

func (m *machine) cuDevicePrimaryCtxRetain(out *sys.CUcontext, dev sys.CUdevice) sys.CUresult {
	return with(m, m.device, dev, func(d *device) sys.CUresult {
		if out == nil {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		if d.primary == nil {
			if m.health.sticky != sys.CUDA_SUCCESS {
				return m.health.sticky
			}
			d.primary = m.newPrimary(d)
		}
		d.retains++
		return set(out, d.primary.handle)
	})
}

// newPrimary makes a device's primary context, which always has the handle that
// the first one had.
func (m *machine) newPrimary(d *device) *context {
	flags := d.flags | uint32(sys.CU_CTX_MAP_HOST)
	if d.last == nil {
		d.last = m.newContext(d, flags)
	} else {
		d.last = m.addContext(d.last.handle, d, flags)
	}
	return d.last
}

// newContext makes a context; its number goes into the handles of what it
// will own.
func (m *machine) newContext(d *device, flags uint32) *context {
	number := uint64(m.serial+1) & 0xffffff
	return m.addContext(sys.CUcontext(m.newHandle(kindContext, number)), d, flags)
}

// addContext makes the context of a handle.
func (m *machine) addContext(h sys.CUcontext, d *device, flags uint32) *context {
	ctx := &context{
		health:    &m.health,
		handle:    h,
		dev:       d,
		api:       laterAPI,
		flags:     flags,
		limits:    defaultLimits(),
		peers:     make(map[*context]bool),
		perThread: make(map[int]*stream),
		streams:   make(map[*stream]bool),
	}
	ctx.legacy = ctx.newStream(sys.CU_STREAM_LEGACY)
	m.contexts[ctx.handle] = ctx
	return ctx
}

func (m *machine) cuDevicePrimaryCtxRelease(dev sys.CUdevice) sys.CUresult {
	return m.destroy(func() (*context, sys.CUresult) {
		d, r := m.device(dev)
		switch {
		case r != sys.CUDA_SUCCESS:
			return nil, r
		case d.retains == 0:
			return nil, sys.CUDA_ERROR_INVALID_CONTEXT
		}
		if d.retains--; d.retains > 0 {
			return nil, r
		}
		return d.endPrimary(), r
	})
}

// cuDevicePrimaryCtxReset destroys the context but not the references to it:
// each must still be released.
func (m *machine) cuDevicePrimaryCtxReset(dev sys.CUdevice) sys.CUresult {
	return m.destroy(func() (*context, sys.CUresult) {
		d, r := m.device(dev)
		if r != sys.CUDA_SUCCESS {
			return nil, r
		}
		return d.endPrimary(), r
	})
}

// endPrimary forgets a device's primary context, which it returns, or nil, and its flags.
func (d *device) endPrimary() (ctx *context) {
	ctx, d.primary, d.flags = d.primary, nil, 0
	return ctx
}

// destroy ends the context that find returns, if any. No new work gets in from the
// first moment; then it waits for the present work, forever if a stream waits
// forever (D20b).
func (m *machine) destroy(find func() (*context, sys.CUresult)) sys.CUresult {
	m.mu.Lock()
	ctx, r := find()
	if ctx == nil || r != sys.CUDA_SUCCESS {
		m.mu.Unlock()
		return r
	}
	ctx.destroyed = true
	work := ctx.tails(everyStream)
	m.mu.Unlock()
	m.await(ctx, work)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropContext(ctx)
	return sys.CUDA_SUCCESS
}

// dropContext frees what a context owns; nothing uses it any more.
func (m *machine) dropContext(ctx *context) {
	for s := range ctx.streams {
		m.leaveCapture(s)
		delete(m.streams, s.handle)
	}
	for h, e := range m.events {
		if e.ctx == ctx {
			delete(m.events, h)
			m.dropEvent(e.shared)
		}
	}
	for _, mod := range m.modules {
		if mod.ctx == ctx {
			m.unload(mod)
		}
	}
	for _, v := range slices.Clone(m.space.reservations) {
		if v.linear == ctx && !v.freed { // what a stream frees, of another context maybe, goes with its work
			m.freeReservation(v)
		}
	}
	m.dropExternals(ctx)
	m.freeBlocks(ctx)
	if m.contexts[ctx.handle] == ctx { // and not a primary context since
		delete(m.contexts, ctx.handle)
	}
	for _, other := range m.contexts {
		delete(other.peers, ctx)
	}
	m.endOwner()
}

func (m *machine) cuDevicePrimaryCtxGetState(dev sys.CUdevice, flags *uint32, active *int32) sys.CUresult {
	return with(m, m.device, dev, func(d *device) sys.CUresult {
		if flags == nil || active == nil {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		*flags, *active = d.flags, int32(asWord(d.primary != nil))
		return sys.CUDA_SUCCESS
	})
}

// cuDevicePrimaryCtxSetFlags is the function of CUDA 7.0, which refuses while
// there is a primary context.
func (m *machine) cuDevicePrimaryCtxSetFlags(dev sys.CUdevice, flags uint32) sys.CUresult {
	return with(m, m.device, dev, func(d *device) sys.CUresult {
		if d.primary != nil {
			return sys.CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE
		}
		return d.setFlags(flags)
	})
}

func (m *machine) cuDevicePrimaryCtxSetFlags_v2(dev sys.CUdevice, flags uint32) sys.CUresult {
	return with(m, m.device, dev, func(d *device) sys.CUresult { return d.setFlags(flags) })
}

// setFlags sets the flags of the present or next primary context. CU_CTX_MAP_HOST
// is always on and may not be requested.
func (d *device) setFlags(flags uint32) sys.CUresult {
	if !validContextFlags(flags) || flags&uint32(sys.CU_CTX_MAP_HOST) != 0 {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	d.flags = flags
	if d.primary != nil {
		d.primary.setFlags(flags)
	}
	return sys.CUDA_SUCCESS
}

// validContextFlags wants known bits and at most one way of waiting.
func validContextFlags(flags uint32) bool {
	sched := flags & uint32(sys.CU_CTX_SCHED_MASK)
	return flags&^uint32(sys.CU_CTX_FLAGS_MASK) == 0 && sched&(sched-1) == 0
}
