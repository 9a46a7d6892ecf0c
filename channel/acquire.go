package channel

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
)

// A Slot is room for one frame. It belongs to the writer until it is published.
type Slot struct {
	Sequence uint64 // the frame's: from 1, without gaps
	Index    int    // of the slot

	ptr  cu.DevicePtr
	size uint64
}

// Ptr returns the device address of the slot's first byte; 0 for the zero Slot. So a Slot is an argument of
// launches, copies and fills.
func (s Slot) Ptr() cu.DevicePtr { return s.ptr }

// Size returns how many bytes the slot has room for. Copies and fills of more are refused ([cu.ErrTooShort]).
func (s Slot) Size() uint64 { return s.size }

// Acquire returns a slot for the next frame. It waits until there is one that no reader holds and that no stream
// has still to write ([Writer.PublishOn]), ctx ends, or the bound of [WithStallLimit] is reached. The slot may be
// written at once. Acquire returns the same slot again until that is published.
//
// Errors: [ErrClosed]; [ErrNoOffer]; [ErrStalled]; [ErrOrder] if a stream is acquiring the slot; [cu.ErrContextLost] if the
// stream will never write what it was given; what ended ctx.
func (w *Writer) Acquire(ctx context.Context) (Slot, error) {
	if w.isZero() {
		return Slot{}, errClosed
	}
	if err := plain.ContextErr(ctx); err != nil {
		return Slot{}, err
	}
	w.turn.Lock()
	defer w.turn.Unlock()
	if err := w.settled(); err != nil {
		return Slot{}, err
	}
	var begin, until time.Time
	for {
		slot, blocker, err := w.choose(begin)
		if err != nil {
			return Slot{}, err
		}
		if w.acquired {
			return w.current(), nil
		}
		if begin.IsZero() {
			begin = time.Now()
		}
		switch {
		case blocker == nil || w.frames[slot] > w.written: // it cannot have given that back
			until = time.Time{}
		case w.opts.stall > 0 && until.IsZero():
			until = time.Now().Add(w.opts.stall)
		}
		if err := w.awaitSlot(ctx, blocker, slot, until); err != nil {
			return Slot{}, err
		}
	}
}

// isOpen is nil while the writer can give frames. The zero Writer never could.
func (w *Writer) isOpen() error {
	if w.isZero() {
		return errClosed
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.over()
}

// current is the slot that is acquired.
func (w *Writer) current() Slot {
	return Slot{Sequence: w.sequence, Index: int(w.slot), ptr: w.buf.Ptr().Add(w.slot * w.stride), size: w.slotSize}
}

// choose picks a slot and takes it, unless one is acquired. If no slot is free, it returns the
// slot to wait for and the reader that has it, or no reader if a stream of the writer has it. begin
// is when the wait for it began, if there was one.
//
// choose looks at the cursors when no slot is known to be free, and once in a round of the slots:
// readers that drop frames keep no slot, and their nonsense has to be noticed, too.
func (w *Writer) choose(begin time.Time) (slot uint64, blocker *member, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.over(); err != nil {
		return 0, nil, err
	}
	if w.acquired {
		return w.slot, nil, nil
	}
	if w.last%w.slots == 0 {
		w.look()
	}
	for {
		slot, free := w.pick()
		if !free {
			w.look()
			slot, free = w.pick()
		}
		if !free {
			if slot, m := w.blocker(slot); m != nil || w.written < w.last {
				w.noteBlockers(slot)
				return slot, m, nil
			}
		}
		if !w.isClaimed(slot) { // else it is held, and another one is picked
			w.take(slot, begin)
			return slot, nil, nil
		}
	}
}

// blocker returns a reader that keeps the writer waiting for the slot, and the slot that is to be waited for. In any order
// that is the oldest that the reader which keeps the most has. It runs with mu held.
func (w *Writer) blocker(slot uint64) (uint64, *member) {
	if w.anyOrder {
		return w.keepsMost()
	}
	for _, m := range w.readers {
		if m.policy == Block && m.holds(slot) {
			return slot, m
		}
	}
	return slot, nil
}

// isClaimed reports whether a reader of Latest takes or holds its frame in the slot. It marks the frame first: a
// reader that claims the slot later sees the mark, and takes a newer frame. It runs with mu held.
func (w *Writer) isClaimed(slot uint64) bool {
	for i := 0; i < len(w.readers); i++ {
		m := w.readers[i]
		n := m.inSlot[slot]
		if m.policy != Latest || n == 0 {
			continue
		}
		stamp := m.at.entryAt(slot) + entryStamp
		m.store(stamp, 2*n+1)
		if m.load(offClaim) != slot+1 {
			continue
		}
		if err := m.deny(slot, w.last+1); err != nil {
			w.drop(m, writerRefused, err)
			i--
			continue
		}
		m.store(stamp, 2*n) // for kernels that look at Frame.Meta
		return true
	}
	return false
}

// look looks at all cursors, and drops readers that have left or wrote nonsense. It runs with mu held. Each
// look takes a line of the cache from a reader, which has to take it back for its next release.
func (w *Writer) look() {
	for i := 0; i < len(w.readers); i++ {
		m := w.readers[i]
		left := m.hasLeft()
		err := m.lookReleased()
		if m.policy == Latest {
			err = cmp.Or(err, m.seeClaim(m.load(offClaim)))
		}
		switch {
		case err != nil:
			w.drop(m, writerRefused, err)
			i--
		case left:
			w.drop(m, writerDropped, nil)
			i--
		}
	}
}

// pick is the slot of the next frame, by what was seen of the cursors. It runs with mu held.
func (w *Writer) pick() (slot uint64, free bool) {
	w.blockers = w.blockers[:0]
	for _, m := range w.readers {
		w.blockers = append(w.blockers, &m.queue)
	}
	w.written = w.last
	if w.byStreams() {
		w.written = w.track.done() / 2
	}
	if !w.streams {
		return pick(w.blockers, w.frames, w.written, w.slot)
	}
	slot = w.slotOf(w.last + 1)
	for _, q := range w.blockers {
		if q.holds(slot) {
			return slot, false
		}
	}
	return slot, w.frames[slot] <= w.written
}

// take has the slot for the next frame. A reader that may still have its old frame finds
// that it is not whole any more. It runs with mu held.
func (w *Writer) take(slot uint64, begin time.Time) {
	if !begin.IsZero() {
		w.stall = max(w.stall, time.Since(begin))
	}
	for _, m := range w.readers {
		if n := m.retires(slot); n != 0 {
			m.store(m.at.entry(n)+entryStamp, 2*n+1)
		}
	}
	w.acquired, w.slot, w.before, w.frames[slot] = true, slot, 0, 0
	w.sequence = w.last + 1
}

// A slotWord is a word by which a reader gives slots back, and what it was.
type slotWord struct {
	m    *member
	off  int
	seen uint64
}

func (s slotWord) hasChanged() bool {
	return s.m.gone.Load() || s.m.load(s.off) != s.seen || s.m.hasLeft()
}

// noteBlockers notes, for while the writer waits for the slot, the readers that keep it waiting, and the words by which
// others may give another slot back. It pins all of them. It runs with mu held.
func (w *Writer) noteBlockers(slot uint64) {
	w.slotWords, w.asked = w.slotWords[:0], w.asked[:0]
	for _, m := range w.readers {
		had := len(w.slotWords)
		switch {
		case m.policy == Latest && m.claimed != 0:
			w.slotWords = append(w.slotWords, slotWord{m, offClaim, m.claimed})
		case m.policy == DropNewest && m.released < m.published:
			w.slotWords = append(w.slotWords, slotWord{m, offReleased, m.released})
		case w.anyOrder:
			w.noteSlots(m)
		}
		if len(w.slotWords) == had && (m.policy != Block || !m.holds(slot)) {
			continue
		}
		w.pin(m)
		if m.policy == Block {
			w.asked = append(w.asked, m)
		}
	}
}

// streamLimit is how long Acquire waits for its stream before it looks whether that still runs.
const streamLimit = time.Second

// awaitSlot waits until m, if it is not nil, has released the slot, has left or is gone, another reader has given one back,
// or a stream of the writer has published a frame. Readers that keep the writer waiting are told so meanwhile.
func (w *Writer) awaitSlot(ctx context.Context, m *member, slot uint64, until time.Time) error {
	defer w.unpin()
	looks, stalls := 0, !until.IsZero()
	behind := w.byStreams() && w.written < w.last // a stream has frames to write, and rings no bell
	if behind && !stalls {
		until = time.Now().Add(streamLimit)
	}
	done, err := w.waitFor(m, until, behind).await(ctx, func() (bool, error) {
		if looks++; looks == looksAtOnce { // one that gives it back at once need not be told
			w.tell(true)
		}
		return w.closing.Load() || behind && w.track.done()/2 > w.written || m != nil && w.gaveBack(m, slot), nil
	})
	if looks >= looksAtOnce {
		w.tell(false)
	}
	switch {
	case err != nil || done:
		return err
	case !stalls:
		return w.stuck()
	}
	return w.stalls(m, slot)
}

// waitFor returns the wait for m, if it is not nil. It looks often if others may end it, who ring no bell that the writer
// hears: a stream that is behind, or in any order another reader.
func (w *Writer) waitFor(m *member, until time.Time, behind bool) waiting {
	wait := waiting{words: w.ownBell, until: until, was: &w.waited, often: behind || w.anyOrder && len(w.asked) > 1}
	if m != nil {
		wait.words, wait.bell, wait.polls = m.words, offWriterBell, offReaderPolls
	}
	return wait
}

// gaveBack reports whether m has released the slot, or another reader one, or whether one of them has left or is gone.
func (w *Writer) gaveBack(m *member, slot uint64) bool {
	return m.gone.Load() || !w.anyOrder && m.load(offReleased) >= m.inSlot[slot] || m.hasLeft() ||
		slices.ContainsFunc(w.asked, (*member).isGone) || slices.ContainsFunc(w.slotWords, slotWord.hasChanged)
}

// stuck says why the stream will not write the frames that it was given, if so.
func (w *Writer) stuck() error {
	if !w.track.isLost() {
		return nil
	}
	return fmt.Errorf("channel: acquiring frame %d: the stream that was given frame %d will not write it: %w", w.last+1, w.written+1, cu.ErrContextLost)
}

// stalls drops m, which has kept the slot for too long, or returns the error that says so.
func (w *Writer) stalls(m *member, slot uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := fmt.Errorf("%w: reader %d has not released frame %d for %s", ErrStalled, m.lease.Number(), m.sequenceOf(m.inSlot[slot]), w.opts.stall)
	if !w.opts.drop {
		return err
	}
	w.drop(m, writerDropped, err)
	return nil
}
