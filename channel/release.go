package channel

import (
	"errors"
	"fmt"
)

// Release gives the frame back, which must not be used any more: synchronise the streams that read
// it first, or use [Reader.ReleaseOn]. In a channel [WithAnyOrder] frames are released in any order, by any goroutine, also while
// another one waits in Next. [ErrPassed] and [ErrDropped] say that the writer may have
// taken the slot while this side held the frame, so what was read may be of two frames. The frame
// is released nevertheless. After ErrPassed, Next takes the newest frame.
//
// Errors: [ErrPassed]; [ErrDropped]; [ErrOrder] if an older frame is held (not [WithAnyOrder]), or if the frame was
// released before, has not come yet, or is to be released by a stream; [ErrClosed].
func (r *Reader) Release(f Frame) error {
	if r.isZero() {
		return errClosed
	}
	if r.anyOrder {
		return r.releaseSlot(&f)
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	if err := r.releases(&f); err != nil {
		return err
	}
	if r.byStream && r.load(offReleased) < r.released.Load() {
		return fmt.Errorf("%w: a stream still has frames to release; release frame %d with ReleaseOn, too", ErrOrder, f.Sequence)
	}
	if r.streams && f.number > r.load(offPublished) {
		return fmt.Errorf("%w: frame %d has not come yet; synchronise the stream of NextOn first", ErrOrder, f.Sequence)
	}
	err := r.isWhole(&f)
	r.passedBy = r.passedBy || errors.Is(err, ErrPassed)
	r.gaveBack(f.number)
	r.store(offReleased, f.number)
	if r.policy == Latest {
		r.store(offClaim, 0)
	}
	r.ring(offWriterBell)
	if err != nil {
		r.stats.passed.Add(1)
	}
	return err
}

// releaseSlot is Release in any order. It waits for nobody: another goroutine may wait in Next.
func (r *Reader) releaseSlot(f *Frame) error {
	if err := r.use(); err != nil {
		return err
	}
	defer r.using.RUnlock()
	h, err := r.letGoOf(f)
	if err != nil {
		return err
	}
	if err = r.dropped(); err != nil {
		r.stats.passed.Add(1)
	}
	r.store(returnedAt(h.slot), h.number)
	r.ring(offWriterBell)
	return err
}

// letGoOf counts a frame as released, in any order, or says why it cannot be released.
func (r *Reader) letGoOf(f *Frame) (h heldFrame, err error) {
	if err := r.isOpen(); err != nil {
		return h, err
	}
	r.holding.Lock()
	defer r.holding.Unlock()
	i, ok := r.held.find(f.number)
	if !ok {
		return h, fmt.Errorf("%w: frame %d is not one of the %d that are held; it was released before", ErrOrder, f.Sequence, r.held.n)
	}
	h = *r.held.at(i)
	r.held.drop(i)
	r.released.Add(1)
	return h, nil
}

// holdAgain undoes letGoOf.
func (r *Reader) holdAgain(h heldFrame) {
	r.holding.Lock()
	defer r.holding.Unlock()
	r.held.add(h)
	r.released.Add(^uint64(0))
}

// isWhole says why the frame is not whole any more, if so.
func (r *Reader) isWhole(f *Frame) error {
	if r.policy == DropOldest && r.load(r.shape.entry(f.number)+entryStamp) != 2*f.number {
		return fmt.Errorf("%w: frame %d", ErrPassed, f.Sequence)
	}
	return r.dropped()
}

// releases says why the frame cannot be released, if so.
func (r *Reader) releases(f *Frame) error {
	if err := r.isOpen(); err != nil {
		return err
	}
	if r.held.n == 0 || r.held.at(0).number != f.number {
		return fmt.Errorf("%w: frame %d is not the oldest of the %d that are held; release that first", ErrOrder, f.Sequence, r.held.n)
	}
	return nil
}

// mayHold returns why no more frames can be taken, or nil.
func (r *Reader) mayHold() error {
	r.holding.Lock()
	defer r.holding.Unlock()
	switch {
	case r.opts.policy == Latest && r.held.n > 0:
		return fmt.Errorf("%w: a frame is held, and a reader of latest holds one at a time; release it first", ErrOrder)
	case r.held.n < r.slots:
		return nil
	}
	return fmt.Errorf("%w: %d frames are held, as many as there are slots; release one first", ErrOrder, r.held.n)
}

// gaveBack notes that the oldest frame that was held is released.
func (r *Reader) gaveBack(number uint64) {
	r.released.Store(number)
	r.held.dropOldest()
}

// Whole reports whether a frame that is held is still whole: nil if it is. [ErrPassed] says that the
// writer has taken its slot, which happens only to readers that drop the oldest; [ErrDropped] says
// that it may have.
func (r *Reader) Whole(f Frame) error {
	if err := r.use(); err != nil {
		return err
	}
	defer r.using.RUnlock()
	return r.isWhole(&f)
}
