package cu

import (
	"errors"
	"slices"
	"sync"

	"github.com/gpufd/gpufd/cu/sys"
)

// tails are the ends of the work that closed streams of a context had: what is closed later waits for them.
type tails struct {
	mu     sync.Mutex
	all    []tail // in their order
	number uint64 // of the last one
}

type tail struct {
	number uint64
	event  sys.CUevent
}

// keepTail records the end of the work of a stream that is about to be destroyed. It waits until the stream has room
// for that.
func (h *contextHandle) keepTail(s *streamHandle) error {
	event, err := h.markQueued(s)
	if errors.Is(err, ErrStreamCaptureUnsupported) { // the capture ends with the stream
		return nil
	}
	if err != nil || event == 0 {
		return err
	}
	t := &h.references().tails
	_, _ = t.done(h, t.last()) // so that they do not pile up
	t.mu.Lock()
	defer t.mu.Unlock()
	t.number++
	t.all = append(t.all, tail{t.number, event})
	return nil
}

// last returns the number of the tail that was recorded last.
func (t *tails) last() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.number
}

// done reports whether the work of all tails up to a number is. h is an open reference to their context.
func (t *tails) done(h *contextHandle, last uint64) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var failed error
	t.all = slices.DeleteFunc(t.all, func(x tail) bool {
		if failed != nil || x.number > last {
			return false
		}
		done, err := h.queryEvent(x.event)
		if failed = err; done {
			h.destroyMark(x.event)
		}
		return done
	})
	return failed == nil && (len(t.all) == 0 || t.all[0].number > last), failed
}

// drop forgets the tails: the context is about to end, or nobody here can ask about it any more.
func (t *tails) drop(h *contextHandle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.all {
		h.destroyMark(x.event)
	}
	t.all = nil
}
