package soft

import (
	"slices"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
)

// An event remembers a point in a stream.
type event struct {
	ctx   *context
	flags uint32
	last  *op // of the latest record; nil if there was none

	shared   *sharedEvent // of an event for other processes
	imported bool         // of cuIpcOpenEventHandle

	captured captured // where the latest record was, if in a capture
}

// timed reports whether the event records the time.
func (e *event) timed() bool { return e.flags&uint32(sys.CU_EVENT_DISABLE_TIMING) == 0 }

// findEvent returns an event whose context takes calls.
func (m *machine) findEvent(h sys.CUevent) (*event, sys.CUresult) {
	if r := m.ready(); r != sys.CUDA_SUCCESS {
		return nil, r
	}
	if e := m.events[h]; e != nil {
		return e, e.ctx.state()
	}
	if h == 0 {
		return nil, sys.CUDA_ERROR_INVALID_HANDLE
	}
	return nil, m.deadHandle(kindEvent, uint64(h), "event", sys.CUDA_ERROR_CONTEXT_IS_DESTROYED)
}

// idleEvent is findEvent for calls that wait for the event, or query it.
func (m *machine) idleEvent(h sys.CUevent) (*event, sys.CUresult) {
	e, r := m.findEvent(h)
	if r == sys.CUDA_SUCCESS {
		r = e.captured.refuseEvent()
	}
	return e, r
}

// cuEventCreate requires events for other processes not to record the time.
func (m *machine) cuEventCreate(out *sys.CUevent, flags uint32) sys.CUresult {
	return withContext(m, m.current, func(ctx *context) sys.CUresult {
		const timing, shared = uint32(sys.CU_EVENT_DISABLE_TIMING), uint32(sys.CU_EVENT_INTERPROCESS)
		known := uint32(sys.CU_EVENT_BLOCKING_SYNC) | timing | shared
		switch {
		case out == nil || flags&^known != 0 || flags&(timing|shared) == shared:
			return sys.CUDA_ERROR_INVALID_VALUE
		case flags&shared != 0 && m.conf.ipc == 0:
			return sys.CUDA_ERROR_NOT_SUPPORTED
		}
		e := &event{ctx: ctx, flags: flags}
		if flags&shared != 0 {
			var r sys.CUresult
			if e.shared, r = m.newSharedEvent(ctx.dev); r != sys.CUDA_SUCCESS {
				return r
			}
		}
		return set(out, m.addEvent(e))
	})
}

// addEvent gives a new event its handle.
func (m *machine) addEvent(e *event) sys.CUevent {
	h := sys.CUevent(m.newHandle(kindEvent, contextNumber(uint64(e.ctx.handle))))
	m.events[h] = e
	return h
}

func (m *machine) cuEventDestroy_v2(h sys.CUevent) sys.CUresult {
	return with(m, m.findEvent, h, func(e *event) sys.CUresult {
		delete(m.events, h)
		m.dropEvent(e.shared)
		return sys.CUDA_SUCCESS
	})
}

func (m *machine) cuEventRecord(h sys.CUevent, hStream sys.CUstream) sys.CUresult {
	return m.cuEventRecordWithFlags(h, hStream, 0)
}

// cuEventRecordWithFlags requires event and stream of the same context.
func (m *machine) cuEventRecordWithFlags(h sys.CUevent, hStream sys.CUstream, flags uint32) sys.CUresult {
	return withBoth(m, m.findEvent, h, m.findStream, hStream, func(e *event, s *stream) sys.CUresult {
		switch {
		case s.ctx != e.ctx:
			return sys.CUDA_ERROR_INVALID_HANDLE
		case flags&^uint32(sys.CU_EVENT_RECORD_EXTERNAL) != 0:
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		e.captured = captured{s.captured.in, slices.Clone(s.captured.after)}
		if s.captured.in != nil {
			return sys.CUDA_SUCCESS
		}
		if flags != 0 {
			return sys.CUDA_ERROR_ILLEGAL_STATE // it is for captures
		}
		if e.shared != nil {
			return m.recordShared(e.shared, s)
		}
		e.last = m.enqueue(s, &op{})
		return sys.CUDA_SUCCESS
	})
}

// cuEventQuery reports an event that was never recorded as done.
func (m *machine) cuEventQuery(h sys.CUevent) sys.CUresult {
	return with(m, m.idleEvent, h, func(e *event) sys.CUresult {
		switch {
		case e.shared != nil:
			r := e.shared.query()
			if r != sys.CUDA_ERROR_NOT_READY {
				e.ctx.lose(r)
			}
			return r
		case e.last != nil && !e.last.finished():
			return sys.CUDA_ERROR_NOT_READY
		}
		return sys.CUDA_SUCCESS
	})
}

func (m *machine) cuEventSynchronize(h sys.CUevent) sys.CUresult {
	m.mu.Lock()
	e, r := m.idleEvent(h)
	if r == sys.CUDA_SUCCESS && e.shared != nil {
		return m.syncShared(e.ctx, e.shared)
	}
	var work []*op
	if r == sys.CUDA_SUCCESS && e.last != nil {
		work = append(work, e.last)
	}
	m.mu.Unlock()
	if r != sys.CUDA_SUCCESS {
		return r
	}
	return m.await(e.ctx, work)
}

func (m *machine) cuEventElapsedTime(out *float32, hStart, hEnd sys.CUevent) sys.CUresult {
	return withBoth(m, m.findEvent, hStart, m.findEvent, hEnd, func(start, end *event) sys.CUresult {
		switch {
		case out == nil:
			return sys.CUDA_ERROR_INVALID_HANDLE
		case start.captured.in != nil || end.captured.in != nil:
			return firstError(start.captured.refuseEvent(), end.captured.refuseEvent())
		case start.last == nil || end.last == nil || !start.timed() || !end.timed() || start.ctx != end.ctx:
			return sys.CUDA_ERROR_INVALID_HANDLE
		case !start.last.finished() || !end.last.finished():
			return sys.CUDA_ERROR_NOT_READY
		}
		return set(out, float32(end.last.at.Sub(start.last.at))/float32(time.Millisecond))
	})
}
