package channel

import (
	"cmp"
	"fmt"

	"github.com/gpufd/gpufd/cu"
)

// NextOn queues on s a wait for the next frame, and returns at once with where the frame will be.
// The host may queue any number of frames ahead. The frame's size, time and user bytes
// are not known yet: kernels find them at Meta, if the writer sets them. A reader of [Latest] gets the frame that
// is the newest when NextOn is called, or the next one.
//
// When the writer dies or ends, s goes on without the frame. Once s has done its work,
// [Reader.Check] says whether the frame was there. Frames that were whole by then can still be taken.
//
// All calls of a reader use one stream; another stream can be used when the first has done all its
// work. Launch each kernel once before: loading one while s waits may hang. If s is closed while the
// driver takes no more work of it, the reader is closed a second later, which frees s. If s waits for
// other work then, closing it takes until that is done.
//
// Errors: [ErrPolicy] in a channel that is not for streams ([WithStreams]); [ErrOrder] if
// another stream has frames queued; what [Reader.Err] says behind the last frame of a writer that is
// gone; [ErrCursor] if the writer wrote nonsense; [ErrClosed]; those of [cu.Stream.BatchMemOps].
func (r *Reader) NextOn(s *cu.Stream) (Frame, error) {
	if r.isZero() {
		return Frame{}, errClosed
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	if err := r.streamed("NextOn", s, r.streams); err != nil {
		return Frame{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.over(); err != nil {
		return Frame{}, err
	}
	if err := r.mayHold(); err != nil {
		return Frame{}, err
	}
	if r.opts.policy == Latest {
		r.skipTo(max(r.next, r.seen))
	}
	if !r.writer.lost.Load() { // else it is whole, and nobody would free a stream that waits any more
		before := r.awaited.Swap(r.next)
		if err := r.step(s, cu.WaitOp64(r.device(offPublished), r.next, cu.WaitGEQ)); err != nil {
			r.awaited.Store(before)
			return Frame{}, err
		}
	}
	f := r.predicted(r.next)
	return f, r.keep(&f, r.next)
}

// over says why no other frame comes, if so: what was whole when the writer ended can still be
// taken, except by a reader that was dropped. It runs with mu held.
func (r *Reader) over() error {
	if r.writer.lost.Load() {
		if err := r.dropped(); err != nil {
			return err
		}
	}
	if err := r.checkAnnounced(); err != nil {
		return err
	}
	if r.writer.lost.Load() && r.next > r.writer.whole {
		return r.writer.why
	}
	return nil
}

// checkAnnounced says why the writer cannot have given as many frames as it says, if so. A stream goes
// on whatever it says. It runs with turn held.
func (r *Reader) checkAnnounced() error {
	announced := r.announced(r.writer.lost.Load())
	if err := checkPublished(r.policy, announced, r.seen, r.released.Load(), r.slots); err != nil {
		return cmp.Or(r.dropped(), r.isOpen(), err) // a writer that drops this side frees its stream, which goes on publishing
	}
	r.seen = announced
	return nil
}

// ReleaseOn queues on s the release of the frame, behind the work that s has, and returns at once. The channel is one
// [WithStreams] or [WithAnyOrder]. In the latter any goroutine may call it.
//
// Errors: those of [Reader.NextOn], but for the writer's end; [ErrOrder] as [Reader.Release].
func (r *Reader) ReleaseOn(s *cu.Stream, f Frame) error {
	if r.isZero() {
		return errClosed
	}
	if r.anyOrder {
		return r.releaseSlotOn(s, &f)
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	if err := cmp.Or(r.streamed("ReleaseOn", s, r.streams), r.releases(&f)); err != nil {
		return err
	}
	if err := r.step(s, cu.WriteOp64(r.device(offReleased), f.number, cu.WriteDefault)); err != nil {
		return err
	}
	r.noteStream()
	r.gaveBack(f.number)
	return nil
}

// releaseSlotOn is ReleaseOn in any order. The frame counts as released before s can release it: then the writer may use
// its slot at once, and end.
func (r *Reader) releaseSlotOn(s *cu.Stream, f *Frame) error {
	r.releasing.Lock()
	defer r.releasing.Unlock()
	if err := r.streamed("ReleaseOn", s, true); err != nil {
		return err
	}
	h, err := r.letGoOf(f)
	if err != nil {
		return err
	}
	if err := r.step(s, cu.WriteOp64(r.device(returnedAt(h.slot)), h.number, cu.WriteDefault)); err != nil {
		r.holdAgain(h)
		return err
	}
	r.noteStream()
	return nil
}

// noteStream tells the writer that a stream releases frames, which rings no bell.
func (r *Reader) noteStream() {
	if !r.byStream {
		r.byStream = true
		r.store(offReaderPolls, 1)
		r.ring(offWriterBell) // one that sleeps would sleep for long
	}
}

// Check reports whether a frame of NextOn was there and whole: nil, or why the stream went on without
// it. Call it once the stream has done its work with the frame. When the writer has dropped this
// reader ([ErrDropped]), or wrote nonsense ([ErrCursor]), frames that were not checked before may not
// be whole.
func (r *Reader) Check(f Frame) error {
	if r.isZero() {
		return errClosed
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	if err := r.isOpen(); err != nil {
		return err
	}
	if err := r.dropped(); err != nil {
		return err
	}
	if r.freeing.Load() {
		select {
		case <-r.done: // and lost is set, but by Close
		case <-r.leaving.closed: // which waits for this
			return errClosed
		}
	}
	if r.streams {
		if err := r.checkAnnounced(); err != nil {
			return err
		}
	}
	switch {
	case !r.writer.lost.Load():
		return r.isOpen()
	case f.number <= r.writer.whole:
		return nil
	}
	return r.writer.why
}

// streamed says why a call by streams is not possible, if so.
func (r *Reader) streamed(call string, s *cu.Stream, may bool) error {
	if err := r.isOpen(); err != nil {
		return err
	}
	if !may && r.anyOrder {
		return fmt.Errorf("%w: %s in a channel whose slots come back in any order, which no stream waits for; take frames with Next", ErrPolicy, call)
	}
	if !may {
		return fmt.Errorf("%w: %s by a reader of policy %s, in a channel that is not for streams; the writer has to make it WithStreams, and readers block", ErrPolicy, call, r.opts.policy)
	}
	return r.track.takes(s)
}

// step gives s one operation.
func (r *Reader) step(s *cu.Stream, op cu.MemOp) error {
	r.batch[0] = op
	return r.track.step(s, r.track.queued.Load()+1, false, r.batch[:])
}
