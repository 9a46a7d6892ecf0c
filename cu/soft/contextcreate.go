package soft

import "github.com/gpufd/gpufd/cu/sys"

// cuCtxCreate is the function of CUDA 2.0.
func (m *machine) cuCtxCreate(out *sys.CUcontext, flags uint32, dev sys.CUdevice) sys.CUresult {
	return m.create(out, flags, dev, firstAPI)
}

func (m *machine) cuCtxCreate_v2(out *sys.CUcontext, flags uint32, dev sys.CUdevice) sys.CUresult {
	return m.create(out, flags, dev, laterAPI)
}

// create makes a context and pushes it.
func (m *machine) create(out *sys.CUcontext, flags uint32, dev sys.CUdevice, api uint32) sys.CUresult {
	return with(m, m.device, dev, func(d *device) sys.CUresult {
		if out == nil || !validContextFlags(flags) {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		if m.health.sticky != sys.CUDA_SUCCESS {
			return m.health.sticky
		}
		ctx := m.newContext(d, flags)
		ctx.attached, ctx.api = 1, api
		t := m.thread()
		t.stack = append(t.stack, ctx.handle)
		return set(out, ctx.handle)
	})
}

// cuCtxCreate_v3 takes no execution affinity: no device here has it.
func (m *machine) cuCtxCreate_v3(out *sys.CUcontext, affinity *sys.CUexecAffinityParam, n int32, flags uint32, dev sys.CUdevice) sys.CUresult {
	if n > 0 {
		return with(m, m.device, dev, func(*device) sys.CUresult {
			if affinity == nil {
				return sys.CUDA_ERROR_INVALID_VALUE
			}
			return sys.CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
		})
	}
	return m.cuCtxCreate_v2(out, flags, dev)
}

// cuCtxCreate_v4 makes no companions of graphics contexts.
func (m *machine) cuCtxCreate_v4(out *sys.CUcontext, params *sys.CUctxCreateParams, flags uint32, dev sys.CUdevice) sys.CUresult {
	if params == nil {
		return m.cuCtxCreate_v2(out, flags, dev)
	}
	if params.CigParams != nil {
		return with(m, m.device, dev, func(*device) sys.CUresult { return sys.CUDA_ERROR_NOT_SUPPORTED })
	}
	return m.cuCtxCreate_v3(out, params.ExecAffinityParams, params.NumExecAffinityParams, flags, dev)
}

// cuCtxDestroy is for contexts of cuCtxCreate. It pops one that is current on the
// calling thread; other threads keep it (D20a).
func (m *machine) cuCtxDestroy(h sys.CUcontext) sys.CUresult {
	if h == 0 {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	return m.destroy(func() (*context, sys.CUresult) {
		ctx, r := m.findCreated(h)
		if t := m.thread(); r == sys.CUDA_SUCCESS && m.currentHandle() == h {
			t.stack = t.stack[:len(t.stack)-1]
		}
		return ctx, r
	})
}

// findCreated returns a context of cuCtxCreate, lost or not. Given anything but a
// context, the real driver kills the process (D4).
func (m *machine) findCreated(h sys.CUcontext) (*context, sys.CUresult) {
	r := m.ready()
	if r == sys.CUDA_SUCCESS && !m.knows(h) {
		r = m.misuse(sys.CUDA_ERROR_INVALID_CONTEXT, "cuCtxDestroy(%#x): no context", uint64(h))
	}
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	ctx, r := m.known(h)
	if r == sys.CUDA_SUCCESS && ctx.primary() {
		r = sys.CUDA_ERROR_INVALID_CONTEXT
	}
	return ctx, r
}

// cuCtxAttach counts one more user of the current context.
func (m *machine) cuCtxAttach(out *sys.CUcontext, flags uint32) sys.CUresult {
	return withContext(m, m.current, func(ctx *context) sys.CUresult {
		if out == nil || flags != 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		if !ctx.primary() {
			ctx.attached++
		}
		return set(out, ctx.handle)
	})
}

// cuCtxDetach counts one user less and destroys the context with the last. A
// primary context stays.
func (m *machine) cuCtxDetach(h sys.CUcontext) sys.CUresult {
	m.mu.Lock()
	ctx, r := m.known(h)
	if r == sys.CUDA_SUCCESS && ctx.attached == 1 {
		m.mu.Unlock()
		return m.cuCtxDestroy(ctx.handle)
	}
	defer m.mu.Unlock()
	if r == sys.CUDA_SUCCESS && !ctx.primary() {
		ctx.attached--
	}
	return r
}

// cuCtxGetFlags of a primary context holds CU_CTX_MAP_HOST.
func (m *machine) cuCtxGetFlags(out *uint32) sys.CUresult {
	return value(m, m.named, 0, out, func(ctx *context) uint32 { return ctx.flags })
}

// cuCtxSetFlags shows in cuDevicePrimaryCtxGetState only flags that the device
// learns at once.
func (m *machine) cuCtxSetFlags(flags uint32) sys.CUresult {
	return with(m, m.known, 0, func(ctx *context) sys.CUresult {
		if !validContextFlags(flags) {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		ctx.setFlags(flags)
		if ctx.primary() {
			const atOnce = uint32(sys.CU_CTX_SYNC_MEMOPS)
			ctx.dev.flags = ctx.dev.flags&^atOnce | flags&atOnce
		}
		return sys.CUDA_SUCCESS
	})
}

// setFlags changes the flags that can be changed later; of the others
// CU_CTX_MAP_HOST stays and those for core dumps go.
func (ctx *context) setFlags(flags uint32) {
	const mapHost = uint32(sys.CU_CTX_MAP_HOST)
	const later = uint32(sys.CU_CTX_SCHED_MASK | sys.CU_CTX_LMEM_RESIZE_TO_MAX | sys.CU_CTX_SYNC_MEMOPS)
	ctx.flags = flags&later | ctx.flags&mapHost
}
