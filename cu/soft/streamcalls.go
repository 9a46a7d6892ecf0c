package soft

import "github.com/gpufd/gpufd/cu/sys"

// findStream returns the stream that a handle means for the calling thread, if
// its context takes calls and the stream takes work and can be queried. Only a
// default stream needs a current context.
func (m *machine) findStream(h sys.CUstream) (*stream, sys.CUresult) {
	s, r := m.anyStream(h)
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	return s, m.capturedState(s)
}

// anyStream is findStream for calls that do not depend on the stream's work.
func (m *machine) anyStream(h sys.CUstream) (*stream, sys.CUresult) {
	if r := m.ready(); r != sys.CUDA_SUCCESS {
		return nil, r
	}
	if s := m.streams[h]; s != nil {
		return s, s.ctx.state()
	}
	if h > sys.CU_STREAM_PER_THREAD {
		return nil, m.deadHandle(kindStream, uint64(h), "stream", sys.CUDA_ERROR_INVALID_HANDLE)
	}
	ctx, r := m.current()
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	if h == sys.CU_STREAM_PER_THREAD {
		return ctx.threadStream(), r
	}
	return ctx.legacy, r
}

// idleStream is findStream for calls that spoil a capture: they wait for the
// stream's work, or cannot be captured.
func (m *machine) idleStream(h sys.CUstream) (*stream, sys.CUresult) {
	s, r := m.anyStream(h)
	if r == sys.CUDA_SUCCESS {
		r = firstError(s.refuse(), m.capturedState(s))
	}
	return s, r
}

// uncapturedStream is findStream for calls that can be captured on the real driver
// and cannot here.
func (m *machine) uncapturedStream(h sys.CUstream) (*stream, sys.CUresult) {
	s, r := m.findStream(h)
	if r == sys.CUDA_SUCCESS && s.captured.in != nil {
		r = sys.CUDA_ERROR_NOT_SUPPORTED
	}
	return s, r
}

// threadStream returns the calling thread's default stream.
func (ctx *context) threadStream() *stream {
	id := threadID()
	if ctx.perThread[id] == nil {
		ctx.perThread[id] = ctx.newStream(sys.CU_STREAM_PER_THREAD)
	}
	return ctx.perThread[id]
}

// state returns why the context takes no calls, if it takes none.
func (ctx *context) state() sys.CUresult {
	if ctx.destroyed {
		return sys.CUDA_ERROR_CONTEXT_IS_DESTROYED
	}
	return ctx.sticky
}

// deadHandle returns the error for a handle that is not there. It may have gone
// with its context. One that was destroyed and is used again, which gets r, or
// never was, is a bug that the real driver may crash on.
func (m *machine) deadHandle(kind, h uint64, what string, r sys.CUresult) sys.CUresult {
	if !m.isA(kind, h) {
		return m.misuse(sys.CUDA_ERROR_INVALID_HANDLE, "%s %#x never was", what, h)
	}
	for _, ctx := range m.contexts {
		if contextNumber(uint64(ctx.handle)) == contextNumber(h) && !ctx.destroyed {
			return m.misuse(r, "%s %#x used after it was destroyed", what, h)
		}
	}
	return sys.CUDA_ERROR_CONTEXT_IS_DESTROYED
}

func (m *machine) cuStreamCreate(out *sys.CUstream, flags uint32) sys.CUresult {
	return m.cuStreamCreateWithPriority(out, flags, leastPriority)
}

// cuStreamCreateWithPriority clamps the priority, as the real one does.
func (m *machine) cuStreamCreateWithPriority(out *sys.CUstream, flags uint32, priority int32) sys.CUresult {
	return withContext(m, m.current, func(ctx *context) sys.CUresult {
		if out == nil || flags&^uint32(sys.CU_STREAM_NON_BLOCKING) != 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		h := sys.CUstream(m.newHandle(kindStream, contextNumber(uint64(ctx.handle))))
		s := ctx.newStream(h)
		s.flags, s.priority = flags, clampPriority(priority)
		m.streams[h] = s
		return set(out, h)
	})
}

// cuStreamDestroy_v2 returns at once; what the stream has is still done. A capture
// that began on it is over.
func (m *machine) cuStreamDestroy_v2(h sys.CUstream) sys.CUresult {
	return with(m, m.anyStream, h, func(s *stream) sys.CUresult {
		if h <= sys.CU_STREAM_PER_THREAD {
			return sys.CUDA_ERROR_INVALID_HANDLE
		}
		delete(m.streams, h)
		s.destroyed = true
		m.leaveCapture(s)
		return sys.CUDA_SUCCESS
	})
}

// pending returns the work that a wait for the stream waits for. For the legacy
// default stream that includes what its next work would wait for.
func (s *stream) pending() []*op {
	work := s.barrier()
	if s != s.ctx.legacy {
		work = nil
	}
	if s.busy() {
		work = append(work, s.tail)
	}
	return work
}

func (m *machine) cuStreamSynchronize(h sys.CUstream) sys.CUresult {
	var work []*op
	var ctx *context
	r := with(m, m.idleStream, h, func(s *stream) sys.CUresult {
		ctx, work = s.ctx, s.pending()
		return sys.CUDA_SUCCESS
	})
	if r != sys.CUDA_SUCCESS {
		return r
	}
	return m.await(ctx, work)
}

func (m *machine) cuStreamQuery(h sys.CUstream) sys.CUresult {
	return with(m, m.idleStream, h, func(s *stream) sys.CUresult {
		if len(s.pending()) > 0 {
			return sys.CUDA_ERROR_NOT_READY
		}
		return sys.CUDA_SUCCESS
	})
}

func (m *machine) cuStreamWaitEvent(h sys.CUstream, hEvent sys.CUevent, flags uint32) sys.CUresult {
	return withBoth(m, m.findStream, h, m.findEvent, hEvent, func(s *stream, e *event) sys.CUresult {
		if flags&^uint32(sys.CU_EVENT_WAIT_EXTERNAL) != 0 {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		if mine, r := m.capturedWait(s, e); mine {
			return r
		}
		if flags != 0 {
			return sys.CUDA_ERROR_ILLEGAL_STATE // it is for captures
		}
		if e.shared != nil {
			return m.waitShared(e.shared, s)
		}
		m.enqueue(s, &op{deps: []*op{e.last}})
		return sys.CUDA_SUCCESS
	})
}

// cuStreamGetFlags is refused on a captured stream, as by the real driver, which
// tells the rest.
func (m *machine) cuStreamGetFlags(h sys.CUstream, out *uint32) sys.CUresult {
	return value(m, m.idleStream, h, out, func(s *stream) uint32 { return s.flags })
}

func (m *machine) cuStreamGetPriority(h sys.CUstream, out *int32) sys.CUresult {
	return value(m, m.anyStream, h, out, func(s *stream) int32 { return s.priority })
}

func (m *machine) cuStreamGetCtx(h sys.CUstream, out *sys.CUcontext) sys.CUresult {
	return value(m, m.anyStream, h, out, func(s *stream) sys.CUcontext { return s.ctx.handle })
}

func (m *machine) cuStreamGetDevice(h sys.CUstream, out *sys.CUdevice) sys.CUresult {
	return value(m, m.anyStream, h, out, func(s *stream) sys.CUdevice { return m.number(s.ctx.dev) })
}
