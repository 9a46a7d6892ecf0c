package cu

import (
	"context"
	"time"

	"github.com/gpufd/gpufd/internal/plain"
)

// defaultCloseLimit is that of [WithCloseLimit].
const defaultCloseLimit = 10 * time.Second

// WithCloseLimit sets how long Close of memory waits for work that was queued before it, here and in
// packages vmm and share. The default is 10 s. With 0, Close fails at once if there is such work. Close asks
// once in any case, so that memory without work is closed however short the limit is.
func WithCloseLimit(d time.Duration) Option { return func(c *config) { c.closeLimit = d } }

// WaitQueued waits for the work that streams have when it is called, in all contexts of this [Driver] on
// all devices, and not for what is given to them later. Work of closed streams counts. If streams
// of [StreamOptions].Blocking are open, WaitQueued waits until their context's null stream has nothing to
// do at some moment. It does not know work that was queued by other means than this Driver, nor that of a
// context of which this Driver has no open reference.
//
// It asks each stream (cuStreamQuery), and marks the end of what a busy one has by an event
// (cuEventRecord, cuEventQuery). Idle streams cost about a microsecond each.
//
// The error is that of ctx, [ErrStreamCaptureUnsupported] or [ErrStreamCaptureImplicit] while a stream is being
// captured, which that does not harm, or the driver's. In lost contexts there is no work.
func (d *Driver) WaitQueued(ctx context.Context) error {
	if d == nil {
		return unusable("WaitQueued", "the driver", true)
	}
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	return d.waitQueued(ctx)
}

// WaitToClose waits as [Driver.WaitQueued] does before what uses memory is closed: until ctx ends or, if it never
// does, as long as [WithCloseLimit] says. Then it returns [ErrInUse]. what names the memory in errors, which begin
// with it. While a stream is being captured it returns ErrInUse at once.
func (d *Driver) WaitToClose(ctx context.Context, what string) error {
	if d == nil {
		return unusable("WaitToClose", "the driver", true)
	}
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	limited := ctx
	if ctx.Done() == nil {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, d.closeLimit)
		defer cancel()
	}
	begun := time.Now()
	return notClosed(what, d.waitQueued(limited), time.Since(begun))
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

// queuedWork is work that waitQueued waits for.
type queuedWork struct {
	held  map[*references][]*contextHandle // entered until close
	parts []workPart
}

// A workPart asks whether some of the work is done. Once it has said so, it is not asked again.
type workPart struct {
	done func() (bool, error)
	end  func() // or nil
}

// gather finds the work of all contexts.
func (w *queuedWork) gather(d *Driver) error {
	closing := w.enter(d)
	for refs, all := range w.held {
		for _, h := range all {
			if err := w.addStreams(h, refs); err != nil {
				return err
			}
		}
		if err := w.addNull(all[0], refs); err != nil {
			return err
		}
		w.addTails(refs, func() bool { return true }) // behind the streams: one that was closed before is among them
	}
	for _, h := range closing {
		w.addTails(h.references(), func() bool { return !d.open.has(h) })
	}
	return nil
}

// enter enters all open contexts, and returns those that are being closed. Of two that gather, the earlier
// one has entered whatever the later one can: else each might wait for the end of a context that the other holds.
func (w *queuedWork) enter(d *Driver) (closing []*contextHandle) {
	d.entering.Lock()
	defer d.entering.Unlock()
	w.held = map[*references][]*contextHandle{}
	for _, h := range d.open.all() {
		if !h.enter() {
			closing = append(closing, h)
			continue
		}
		refs := h.references()
		w.held[refs] = append(w.held[refs], h)
	}
	return closing
}

func (w *queuedWork) addStreams(h *contextHandle, refs *references) error {
	for _, s := range h.ownStreams() {
		if !s.enter() { // it is being closed, and then among the tails
			w.addTails(refs, func() bool { return !h.owns(s) })
			continue
		}
		err := w.add(h, s)
		s.leave()
		if err != nil {
			return err
		}
	}
	return nil
}

// addNull adds the work of the null stream.
func (w *queuedWork) addNull(h *contextHandle, refs *references) error {
	for _, s := range h.streams() {
		if s.blocking { // a mark would make their later work wait for all that they have now
			w.parts = append(w.parts, workPart{done: func() (bool, error) {
				if !refs.null.TryLock() {
					return false, nil
				}
				defer refs.null.Unlock()
				return h.queryStream(0)
			}})
			return nil
		}
	}
	return w.add(h, &streamHandle{}) // which has no Close
}

// add adds the work that a stream has now.
func (w *queuedWork) add(h *contextHandle, s *streamHandle) error {
	m, err := h.newMark(s)
	if m != nil {
		w.parts = append(w.parts, workPart{m.reached, m.end})
	}
	return err
}

// addTails adds the tails of a context, once all are recorded that matter. Without an open reference there is
// nothing to ask the driver with.
func (w *queuedWork) addTails(refs *references, recorded func() bool) {
	var last uint64
	known := recorded()
	if known {
		last = refs.tails.last()
	}
	w.parts = append(w.parts, workPart{done: func() (bool, error) {
		if !known {
			if !recorded() {
				return false, nil
			}
			known, last = true, refs.tails.last()
		}
		if held := w.held[refs]; len(held) > 0 {
			return refs.tails.done(held[0], last)
		}
		return true, nil
	}})
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
