package cu

import (
	"context"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/plain"
)

// ErrInUse says that memory was not closed, because work that may use it is still queued. Nothing has
// changed. It is [gpumem.ErrInUse].
var ErrInUse = gpumem.ErrInUse

// defaultCloseLimit is that of [WithCloseLimit].
const defaultCloseLimit = 10 * time.Second

// WithCloseLimit sets how long Close of memory waits for work that was queued before it, here and in
// packages vmm and share. The default is 10 s. With 0, Close fails at once if there is such work. Close asks
// once in any case, so that memory without work is closed however short the limit is.
func WithCloseLimit(d time.Duration) Option { return func(c *config) { c.closeLimit = d } }

// WaitQueued waits for the work that streams have when it is called, in all contexts of this [Driver] on
// all devices, and not for what is given to them meanwhile. Work of closed streams counts. If streams
// of [StreamOptions].Blocking are open, WaitQueued waits until their context's null stream has nothing to
// do at some moment. Work that was queued by other means than this Driver is not known to it.
//
// It asks each stream (cuStreamQuery), and marks the end of what a busy one has by an event
// (cuEventRecord, cuEventQuery). Idle streams cost about a microsecond each.
//
// The error is that of ctx, [ErrStreamCaptureUnsupported] while a stream is being captured, which
// that does not harm, or the driver's. In lost contexts there is no work.
func (d *Driver) WaitQueued(ctx context.Context) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	return d.waitQueued(ctx)
}

// WaitToClose waits for queued work as [Driver.WaitQueued] does, for as long as Close of memory waits: see
// [WithCloseLimit].
func (d *Driver) WaitToClose() error {
	ctx, cancel := context.WithTimeout(context.Background(), d.closeLimit)
	defer cancel()
	return d.waitQueued(ctx)
}

// waitQueued asks at least once, also if ctx has ended.
func (d *Driver) waitQueued(ctx context.Context) error {
	if d.loss.isLost() {
		return nil
	}
	var w queuedWork
	defer w.close()
	err := w.gather(d)
	if err == nil {
		var done bool
		if done, err = w.done(); !done && err == nil {
			err = poll(ctx, w.done)
		}
	}
	if d.loss.isLost() {
		return nil
	}
	return err
}

// queuedWork is work that WaitQueued waits for.
type queuedWork struct {
	held  map[*references][]*contextHandle // open until close
	parts []workPart
}

// A workPart asks whether some of the work is done. Once it has said so, it is not asked again.
type workPart struct {
	done func() (bool, error)
	end  func() // or nil
}

// gather finds the work of all contexts.
func (w *queuedWork) gather(d *Driver) error {
	w.held = map[*references][]*contextHandle{}
	var ending []*contextHandle
	for _, h := range d.open.all() {
		if !h.enter() {
			ending = append(ending, h)
			continue
		}
		w.held[h.references()] = append(w.held[h.references()], h)
	}
	for refs, all := range w.held {
		if err := w.addShared(all[0], refs); err != nil {
			return err
		}
		for _, h := range all {
			if err := w.addStreams(h, refs); err != nil {
				return err
			}
		}
	}
	for _, h := range ending {
		w.addTailsBehind(h.references(), func() bool { return !d.open.has(h) })
	}
	return nil
}

// addShared adds what all references to a context share: the work of closed streams, and the null stream.
func (w *queuedWork) addShared(h *contextHandle, refs *references) error {
	last := refs.lastTail()
	w.parts = append(w.parts, workPart{done: func() (bool, error) { return refs.tailsDone(h, last) }})
	for _, s := range h.streams() {
		if s.blocking { // an event would make their later work wait for all that they have now
			w.parts = append(w.parts, workPart{done: func() (bool, error) { return h.queryStream(0) }})
			return nil
		}
	}
	return w.add(h, 0)
}

func (w *queuedWork) addStreams(h *contextHandle, refs *references) error {
	for _, s := range h.ownStreams() {
		if !s.enter() { // it is being closed
			w.addTailsBehind(refs, func() bool { return !h.owns(s) })
			continue
		}
		err := w.add(h, s.stream)
		s.leave()
		if err != nil {
			return err
		}
	}
	return nil
}

// addTailsBehind adds the tails that there are in a context when kept says that those of what is being closed are
// among them. Work of a context that nobody holds has ended with it.
func (w *queuedWork) addTailsBehind(refs *references, kept func() bool) {
	known, last := false, uint64(0)
	w.parts = append(w.parts, workPart{done: func() (bool, error) {
		if !known && !kept() {
			return false, nil
		}
		if !known {
			known, last = true, refs.lastTail()
		}
		if held := w.held[refs]; len(held) > 0 {
			return refs.tailsDone(held[0], last)
		}
		return true, nil
	}})
}

// add adds the work that a stream has now.
func (w *queuedWork) add(h *contextHandle, stream sys.CUstream) error {
	mark, err := h.markQueued(stream)
	if err != nil || mark == 0 {
		return err
	}
	w.parts = append(w.parts, workPart{
		done: func() (bool, error) { return h.queryEvent(mark) },
		end:  func() { h.call.CuEventDestroy_v2(mark) },
	})
	return nil
}

// done reports whether all of the work is.
func (w *queuedWork) done() (bool, error) {
	for len(w.parts) > 0 {
		p := w.parts[0]
		if done, err := p.done(); !done || err != nil {
			return false, err
		}
		w.parts = w.parts[1:]
		if p.end != nil {
			p.end()
		}
	}
	return true, nil
}

func (w *queuedWork) close() {
	for _, p := range w.parts {
		if p.end != nil {
			p.end()
		}
	}
	for _, all := range w.held {
		for _, h := range all {
			h.leave()
		}
	}
}

// markQueued returns an event behind the work that a stream has, which outlives the stream, or 0 if it has none.
// The caller destroys it. No capture begins meanwhile: recording would be captured, and asking would spoil the capture.
func (h *contextHandle) markQueued(stream sys.CUstream) (sys.CUevent, error) {
	begin := &h.dev.drv.captures.begin
	begin.Lock()
	defer begin.Unlock()
	if done, err := h.queryStream(stream); done || err != nil {
		return 0, err
	}
	mark := new(sys.CUevent)
	if err := h.check("cuEventCreate", h.call.CuEventCreate(mark, uint32(sys.CU_EVENT_DISABLE_TIMING))); err != nil {
		return 0, err
	}
	if err := h.check("cuEventRecord", h.call.CuEventRecord(*mark, stream)); err != nil {
		h.call.CuEventDestroy_v2(*mark)
		return 0, err
	}
	return *mark, nil
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

// waitUnused waits, at most for the driver's CloseLimit, until queued work does not use the memory that what describes
// any more. Else it returns ErrInUse.
func (d *Driver) waitUnused(what func() string) error {
	if err := d.WaitToClose(); err != nil {
		return fmt.Errorf("%w: cannot close %s while streams may have work from before: synchronise them, or free one that waits, and close again: %w", ErrInUse, what(), err)
	}
	return nil
}
