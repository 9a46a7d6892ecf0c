package channel

import (
	"fmt"
	"slices"
)

// Close ends the channel in order: readers get what was published, and then [ErrEnded]. The
// memory is freed when the last reader has closed it. Once Close was called, all other methods
// return [ErrClosed].
//
// Close waits up to a second for a stream that still has to acquire or publish; to wait longer,
// synchronise the stream first. Then it drops the readers that keep the stream waiting (they get
// [ErrDropped]), and waits a second more. If the stream has other work to do, Close returns
// [ErrInUse] and can be called again when the stream has gone on. If the context is lost before a
// stream has published its frames, readers get a [*WriterLostError].
func (w *Writer) Close() error {
	if w.isZero() {
		return nil
	}
	w.mu.Lock()
	w.closed = true
	w.end(errClosed)
	w.closing.Store(true)
	for _, m := range w.readers {
		m.ring(offWriterBell)
	}
	w.mu.Unlock()
	for waited := 1; !lockWithin(&w.turn, closeLimit); waited++ { // AcquireOn or PublishOn is in the driver, until the stream goes on
		if w.dropBlockers() { // again and again: the next frame may wait for another reader
			waited = 0
		}
		if waited == 2 {
			return w.track.inUse()
		}
	}
	defer w.turn.Unlock()
	if w.ended {
		return nil
	}
	if w.leaves {
		return w.discard()
	}
	if err := w.settle(); err != nil {
		return err
	}
	state := writerEnded
	if !w.track.idle() { // its context is lost: frames that were queued will never be whole
		state = writerOpen
	}
	w.mu.Lock()
	for _, m := range slices.Clone(w.readers) {
		w.drop(m, state, nil)
	}
	w.mu.Unlock()
	w.moved()
	if w.offer != nil {
		_ = w.offer.Close() // it has no fence
		<-w.served
	}
	w.guests.Wait()
	w.leaves = true
	return w.discard()
}

// discard frees what a writer has. It may be called again.
func (w *Writer) discard() error {
	err := behindOthers(func() error {
		for _, end := range []func() error{w.buf.Close, w.track.close, w.ctx.Close} {
			if err := end(); err != nil {
				return err
			}
		}
		return nil
	})
	w.ended = err == nil
	return err
}

// settle waits until no stream has to do with the channel.
func (w *Writer) settle() error {
	if w.track.await(closeLimit) == nil {
		return nil
	}
	w.dropBlockers()
	return w.track.await(closeLimit)
}

// dropBlockers drops the readers that keep the stream waiting, and reports whether there were any.
func (w *Writer) dropBlockers() (dropped bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range slices.Clone(w.readers) {
		if n, ok := w.blocks(m); ok {
			w.drop(m, writerDropped, fmt.Errorf("%w: the writer is being closed, and reader %d has not released frame number %d", ErrStalled, m.lease.Number(), n))
			dropped = true
		}
	}
	return dropped
}
