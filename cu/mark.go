package cu

import (
	"sync"
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
	if marks := s.marks(h.references()); tryLock(marks) {
		idle, err := h.queryStream(s.stream)
		marks.Unlock()
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
			m.h.destroyMark(m.event)
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
	marks := s.marks(h.references())
	marks.Lock()
	defer marks.Unlock()
	if done, err := h.queryStream(s.stream); done || err != nil {
		return 0, err
	}
	e := new(sys.CUevent)
	if err := h.check("cuEventCreate", h.call.CuEventCreate(e, uint32(sys.CU_EVENT_DISABLE_TIMING))); err != nil {
		return 0, err
	}
	if err := h.check("cuEventRecord", h.call.CuEventRecord(*e, s.stream)); err != nil {
		h.destroyMark(*e)
		return 0, err
	}
	return *e, nil
}

// marks is held while the stream is asked what it has to do, or while it may begin to be captured: to ask would spoil
// the capture, and the event would be captured.
func (s *streamHandle) marks(refs *references) *sync.Mutex {
	if s.stream == 0 {
		return &refs.null
	}
	return &s.marking
}

// lockCaptures locks out questions while the stream may begin to be captured. The capture of a blocking stream spoils
// questions about the null stream, too.
func (s *streamHandle) lockCaptures(refs *references) {
	s.marks(refs).Lock()
	if s.blocking {
		refs.null.Lock()
	}
}

func (s *streamHandle) unlockCaptures(refs *references) {
	if s.blocking {
		refs.null.Unlock()
	}
	s.marks(refs).Unlock()
}

// tryLock locks m unless that would have to wait long: for a call that the driver keeps.
func tryLock(m *sync.Mutex) bool {
	for range 50 {
		if m.TryLock() {
			return true
		}
		time.Sleep(pollMin)
	}
	return false
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

// destroyMark destroys an event, unless the context is lost: see closeChild.
func (h *contextHandle) destroyMark(e sys.CUevent) {
	if !h.loss.isLost() {
		h.call.CuEventDestroy_v2(e)
	}
}
