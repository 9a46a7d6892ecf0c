package channel

import (
	"fmt"
	"time"

	"github.com/gpufd/gpufd/cu"
)

// maxBatch is how many operations one call of the driver takes.
const maxBatch = 255

// AcquireOn queues on s a wait until no reader holds the slot of the next frame, and returns at once.
// The host may queue any number of frames ahead. The next call of [Writer.PublishOn] publishes the
// slot.
//
// When a reader dies or is dropped, s does not wait for it any more. All calls of a writer use one
// stream; another stream can be used when the first has done all its work. Launch each kernel once
// before: loading one while s waits may hang. If s is closed while the driver takes no more work of it,
// readers that keep s waiting are dropped a second later. If s waits for other work then, closing it
// takes until that is done.
//
// Errors: [ErrPolicy] without [WithStreams]; [ErrOrder] if another stream has frames queued;
// [ErrNoOffer]; [ErrClosed]; those of [cu.Stream.BatchMemOps].
func (w *Writer) AcquireOn(s *cu.Stream) (Slot, error) {
	if w.isZero() {
		return Slot{}, errClosed
	}
	w.turn.Lock()
	defer w.turn.Unlock()
	if err := w.streamed("AcquireOn", s, w.streams); err != nil {
		return Slot{}, err
	}
	if w.acquired {
		return w.current(), nil
	}
	sequence := w.last + 1
	slot := w.slotOf(sequence)
	w.awaits(slot)
	defer w.unpin()
	if len(w.batch) > 0 { // else the stream has nothing to do until it publishes
		if err := w.track.step(s, acquiring(sequence), false, w.batch); err != nil {
			return Slot{}, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.acquired, w.slot, w.sequence, w.before, w.frames[slot] = true, slot, sequence, w.frames[slot], 0
	return w.current(), nil
}

// awaits puts into the batch a wait for each reader that has not released the slot, and pins those readers.
func (w *Writer) awaits(slot uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look()
	w.batch = w.batch[:0]
	for _, m := range w.readers {
		if n := m.inSlot[slot]; n > m.released {
			w.batch = append(w.batch, cu.WaitOp64(m.device(offReleased), n, cu.WaitGEQ))
			w.pin(m)
		}
	}
}

// pin has m's cursor stay open until unpin, while a stream is given what uses it. mu is not held
// meanwhile: the driver may keep the call until the stream goes on, which may take that
// somebody is dropped. pin runs with mu held.
func (w *Writer) pin(m *member) {
	m.pins.Add(1)
	w.pinned = append(w.pinned, m)
}

func (w *Writer) unpin() {
	for _, m := range w.pinned {
		m.pins.Add(-1)
	}
	w.pinned = w.pinned[:0]
}

// The tracker's word is odd once the stream has acquired the slot of a frame, and even once it has published it.
func acquiring(sequence uint64) uint64  { return 2*sequence - 1 }
func publishing(sequence uint64) uint64 { return 2 * sequence }

// streamed says why a call by streams is not possible, if so.
func (w *Writer) streamed(call string, s *cu.Stream, may bool) error {
	if err := w.isOpen(); err != nil {
		return err
	}
	if !may && w.anyOrder {
		return fmt.Errorf("%w: %s in a channel whose slots come back in any order, which no stream waits for; call Acquire", ErrPolicy, call)
	}
	if !may {
		return fmt.Errorf("%w: %s in a channel that is not for streams; make it WithStreams", ErrPolicy, call)
	}
	return w.track.takes(s)
}

// PublishOn queues on s the publishing of the frame in the slot, behind the work that s has, and
// returns at once. The channel is one [WithStreams] or [WithAnyOrder]. PublishOn gives the frame to all
// readers that have joined by now. A reader's stream goes on when s has published; a reader's host may
// see the frame up to 250 µs later, because a stream wakes nobody. m goes with the frame. A zero Meta
// costs nothing in a channel WithStreams, where readers are then told only that the frame is there.
//
// Errors: those of [Writer.AcquireOn]; [ErrOrder] if the slot is not the one that was
// acquired. With an error the frame is not published.
func (w *Writer) PublishOn(s *cu.Stream, slot Slot, m Meta) error {
	if w.isZero() {
		return errClosed
	}
	w.turn.Lock()
	defer w.turn.Unlock()
	if err := w.streamed("PublishOn", s, w.byStreams()); err != nil {
		return err
	}
	w.giving.Lock() // nobody is admitted meanwhile, who would not get the frame
	defer w.giving.Unlock()
	if err := w.pinAll(slot, m); err != nil {
		return err
	}
	defer w.unpin()
	if err := w.describeAll(s, m); err != nil {
		return err
	}
	if err := w.makeRoom(s, 2*len(w.pinned)+1); err != nil {
		return err
	}
	for _, r := range w.pinned {
		if w.anyOrder {
			w.batch = append(w.batch, cu.WriteOp64(r.device(w.entry(r.published+1)+entryStamp), 2*(r.published+1), cu.WriteDefault))
		}
		w.batch = append(w.batch, cu.WriteOp64(r.device(offPublished), r.published+1, cu.WriteDefault))
	}
	if err := w.track.step(s, publishing(w.sequence), true, w.batch); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.pinned {
		if r.gone.Load() {
			continue
		}
		r.give(w.slot)
		w.given++
		if r.load(offWriterPolls) == 0 {
			r.store(offWriterPolls, 1)
			r.ring(offReaderBell) // one that sleeps would sleep for long
		}
	}
	m.complete(w.slotSize)
	w.finish(&m)
	return nil
}

// pinAll pins all readers, unless the slot cannot be published.
func (w *Writer) pinAll(slot Slot, m Meta) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.publishes(slot, &m); err != nil {
		return err
	}
	for _, r := range w.readers {
		w.pin(r)
	}
	return nil
}

// describeAll begins a batch with what writes the entries of the next frame, unless there is
// nothing to say.
func (w *Writer) describeAll(s *cu.Stream, m Meta) error {
	w.batch = w.batch[:0]
	if m.Time == 0 && m.Size == 0 && len(m.User) == 0 && !w.anyOrder {
		return nil
	}
	m.complete(w.slotSize)
	for _, r := range w.pinned {
		if w.anyOrder { // the entry is free already, and the stream stores its stamp
			describe(r.store, w.entry(r.published+1), w.slot, w.sequence, &m)
			continue
		}
		if err := w.describe(s, r, m); err != nil {
			return err
		}
	}
	return nil
}

// describe adds what writes the entry of the next frame of r.
func (w *Writer) describe(s *cu.Stream, r *member, m Meta) error {
	n := r.published + 1
	at := w.entry(n)
	if err := w.makeRoom(s, 6+MaxUser/8+1); err != nil {
		return err
	}
	put := func(off int, v uint64) {
		w.batch = append(w.batch, cu.WriteOp64(r.device(off), v, cu.WriteDefault))
	}
	describe(put, at, w.slot, w.sequence, &m)
	put(at+entryStamp, 2*n)
	return nil
}

// makeRoom gives s the batch if there is no room for n more operations and the tracker's.
func (w *Writer) makeRoom(s *cu.Stream, n int) error {
	if len(w.batch)+n < maxBatch {
		return nil
	}
	err := w.track.part(s, w.batch)
	w.batch = w.batch[:0]
	if err != nil {
		return fmt.Errorf("channel: frame %d: %w", w.sequence, err)
	}
	return nil
}

// settled returns an error if a stream is acquiring a slot, so that the host cannot. It does not wait.
func (w *Writer) settled() error {
	if (w.track.queued.Load()%2 == 1 || w.acquired && publishing(w.before) > w.track.done()) && !w.track.idle() {
		return fmt.Errorf("%w: a stream is still acquiring frame %d; publish it with PublishOn, or synchronise the stream first", ErrOrder, w.last+1)
	}
	return nil
}

// blockedBy is the number of the frame that a stream of the writer waits for m to release.
func (w *Writer) blockedBy(m *member) (number uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.blocks(m)
}

// blocks is blockedBy with mu held. The stream has published frame k if the tracker's word is
// 2k: then it acquires frame k + 1, whose slot frame k + 1 - slots had. It compares as the
// stream does: a number that cannot be may keep that waiting, too.
func (w *Writer) blocks(m *member) (number uint64, ok bool) {
	done := w.track.done()
	if w.anyOrder || done >= w.track.queued.Load() || done%2 == 1 {
		return 0, false
	}
	if next := done/2 + 1; next > w.slots && next-w.slots >= m.first {
		number = next - w.slots - m.first + 1
	}
	return number, number > 0 && int64(m.load(offReleased)-number) < 0
}

// release frees the streams that wait for a reader that is gone, so that nothing of this
// process has to do with its cursor any more.
func (w *Writer) release(m *member) {
	if w.anyOrder { // no stream waits there
		for pause := pollMin; m.pins.Load() > 0; pause = min(2*pause, sleepMax) {
			time.Sleep(pause)
		}
		w.track.pass()
		return
	}
	keepFreeing(m.words, offReleased, func() bool { return m.pins.Load() == 0 }, func() bool { return false })
	w.track.free(m.words, offReleased)
}
