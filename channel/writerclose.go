package channel

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpufd/gpufd/internal/plain"
)

// hostsLimit is how long Close waits for the hosts of its readers, which wait for no stream then.
const hostsLimit = 5 * closeLimit

// Close ends the channel in order: readers get what was published, and then [ErrEnded]. The
// memory is freed when the last reader has closed it. Once Close was called, all other methods
// return [ErrClosed].
//
// Close waits up to a second for a stream that still has to acquire or publish; to wait longer,
// synchronise the stream first. Then it drops the readers that keep the stream waiting (they get
// [ErrDropped]), and waits a second more. If the stream has other work to do, Close returns
// [ErrInUse] and can be called again when the stream has gone on. If the context is lost before a
// stream has published its frames, readers get a [*WriterLostError].
//
// Memory is closed only when no stream has work ([cu.Driver.WaitToClose]). Close waits for the work of other streams
// for a second, and then, or at once while a stream is being captured, returns ErrInUse: readers have got their end, the
// memory is kept, and Close may be called again. It also returns ErrInUse if a function of [OnGone] takes longer than 5 s.
func (w *Writer) Close() error {
	if w.isZero() {
		return nil
	}
	w.mu.Lock()
	w.closed = true
	w.end(errClosed)
	if !w.closing.Swap(true) {
		close(w.begun)
	}
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
	if w.allFreed {
		return nil
	}
	if !w.readersGone {
		if err := w.endReaders(); err != nil {
			return err
		}
		w.readersGone = true
	}
	return closeBesideOthers(w.ctx, closeLimit, w.free)
}

// endReaders tells the readers that the channel has ended, and waits for their hosts. It may be called again.
func (w *Writer) endReaders() error {
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
	if w.hostsGone == nil {
		w.hostsGone = begin(w.guests.Wait)
	}
	select {
	case <-w.hostsGone:
		return nil
	case <-time.After(hostsLimit):
		return plain.ErrorOf(fmt.Sprintf("channel: memory of a reader is still being closed, or a function of OnGone has not returned, after %s: call Close again", hostsLimit), ErrInUse)
	}
}

// free frees what a writer has, or fails at the first part that is in use. Cursors come before the context, which
// would unregister them while they are mapped.
func (w *Writer) free() error {
	for _, m := range w.unclosed {
		if err := m.close(); err != nil {
			return err
		}
	}
	for _, end := range []func() error{w.buf.Close, w.track.close, w.ctx.Close} {
		if err := end(); err != nil {
			return err
		}
	}
	w.allFreed = true
	return w.hostsErr
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
