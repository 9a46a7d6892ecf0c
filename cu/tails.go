package cu

import (
	"errors"
	"slices"

	"github.com/gpufd/gpufd/cu/sys"
)

// A tail is the end of the work that a closed stream had: what is closed later waits for it.
type tail struct {
	number uint64
	mark   sys.CUevent
}

// keepTail records the end of the work of a stream that is about to be destroyed.
func (h *contextHandle) keepTail(stream sys.CUstream) error {
	mark, err := h.markQueued(stream)
	if errors.Is(err, ErrStreamCaptureUnsupported) { // the capture ends with the stream
		return nil
	}
	if err != nil || mark == 0 {
		return err
	}
	r := h.references()
	r.dropDone(h)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tailed++
	r.tails = append(r.tails, tail{r.tailed, mark})
	return nil
}

// lastTail returns the number of the tail that was recorded last.
func (r *references) lastTail() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tailed
}

// tailsDone reports whether the work of all tails up to a number is done. h is an open reference.
func (r *references) tailsDone(h *contextHandle, last uint64) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var failed error
	r.tails = slices.DeleteFunc(r.tails, func(t tail) bool {
		if failed != nil || t.number > last {
			return false
		}
		done, err := h.queryEvent(t.mark)
		if failed = err; done {
			h.call.CuEventDestroy_v2(t.mark)
		}
		return done
	})
	return failed == nil && (len(r.tails) == 0 || r.tails[0].number > last), failed
}

// dropDone drops the tails of work that is done.
func (r *references) dropDone(h *contextHandle) { _, _ = r.tailsDone(h, r.lastTail()) }

// dropTails forgets the tails: the context is about to end.
func (r *references) dropTails(h *contextHandle) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.tails {
		h.call.CuEventDestroy_v2(t.mark)
	}
	r.tails = nil
}
