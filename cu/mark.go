package cu

import (
	"time"

	"github.com/gpufd/gpufd/cu/sys"
)

// A mark is an event behind the work that a stream has. The driver may keep the call that records it until
// a stream that is full goes on, so a goroutine makes it.
type mark struct {
	h     *contextHandle // entered until end
	made  chan struct{}  // closed when the fields below are set
	event sys.CUevent    // 0 if there was no work
	err   error
}

// newMark returns a mark behind the work that a stream has now, or nil if it has none. The caller ends it, and
// has entered h and s.
func (h *contextHandle) newMark(s *streamHandle) (*mark, error) {
	refs := h.references()
	idle := false
	if locked := s.tryLockMarks(refs); locked {
		var err error
		idle, err = h.queryStream(s.stream)
		s.unlockMarks(refs)
		if idle || err != nil {
			return nil, err
		}
	}
	m := &mark{h: h, made: make(chan struct{})}
	h.again()
	s.again()
	go func() {
		defer s.leave()
		defer close(m.made)
		m.event, m.err = h.markQueued(s)
	}()
	return m, nil
}

// reached reports whether the stream has.
func (m *mark) reached() (bool, error) {
	select {
	case <-m.made:
	default:
		return false, nil
	}
	if m.event == 0 || m.err != nil {
		return m.err == nil, m.err
	}
	return m.h.queryEvent(m.event)
}

// end destroys the event, as soon as it has been made.
func (m *mark) end() {
	end := func() {
		<-m.made
		if m.event != 0 {
			m.h.call.CuEventDestroy_v2(m.event)
		}
		m.h.leave()
	}
	select {
	case <-m.made:
		end()
	default:
		go end()
	}
}

// markQueued returns an event behind the work that a stream has, which outlives the stream, or 0 if it has none.
// The caller destroys it. It returns when the stream has room for the event.
func (h *contextHandle) markQueued(s *streamHandle) (sys.CUevent, error) {
	refs := h.references()
	s.lockMarks(refs)
	defer s.unlockMarks(refs)
	if done, err := h.queryStream(s.stream); done || err != nil {
		return 0, err
	}
	e := new(sys.CUevent)
	if err := h.check("cuEventCreate", h.call.CuEventCreate(e, uint32(sys.CU_EVENT_DISABLE_TIMING))); err != nil {
		return 0, err
	}
	if err := h.check("cuEventRecord", h.call.CuEventRecord(*e, s.stream)); err != nil {
		h.call.CuEventDestroy_v2(*e)
		return 0, err
	}
	return *e, nil
}

// lockMarks locks out the calls by which a capture begins on the stream, or takes it in, while the stream is asked
// what it has to do: to ask would spoil the capture, and the event would be captured. A capture of a blocking stream
// spoils questions about the null stream, too.
func (s *streamHandle) lockMarks(refs *references) {
	if s.stream != 0 {
		s.marking.Lock()
	}
	if s.stream == 0 || s.blocking {
		refs.null.Lock()
	}
}

// tryLockMarks is lockMarks unless that would have to wait long: for a call that the driver keeps.
func (s *streamHandle) tryLockMarks(refs *references) bool {
	for range 50 {
		if s.lockMarksNow(refs) {
			return true
		}
		time.Sleep(pollMin)
	}
	return false
}

// lockMarksNow is lockMarks unless that would have to wait.
func (s *streamHandle) lockMarksNow(refs *references) bool {
	if s.stream == 0 {
		return refs.null.TryLock()
	}
	if !s.marking.TryLock() {
		return false
	}
	if s.blocking && !refs.null.TryLock() {
		s.marking.Unlock()
		return false
	}
	return true
}

func (s *streamHandle) unlockMarks(refs *references) {
	if s.stream == 0 || s.blocking {
		refs.null.Unlock()
	}
	if s.stream != 0 {
		s.marking.Unlock()
	}
}

// queryStream reports whether a stream has no work.
func (h *contextHandle) queryStream(stream sys.CUstream) (done bool, err error) {
	r := h.refuseCaptured(h.call, stream)
	if r == sys.CUDA_SUCCESS {
		r = answer(h.call.CuStreamQuery(stream), &done)
	}
	return done, h.check("cuStreamQuery", r)
}

func (h *contextHandle) queryEvent(e sys.CUevent) (done bool, err error) {
	r := answer(h.call.CuEventQuery(e), &done)
	return done, h.check("cuEventQuery", r)
}
