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

// Acquire returns a slot for the next frame. It waits until there is one that no reader holds, ctx
// ends, or the bound of [WithStallLimit] is reached. The slot may be written at once. Acquire returns the
// same slot again until that is published.
//
// Errors: [ErrClosed]; [ErrNoOffer]; [ErrStalled]; what ended ctx.
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
		if blocker == nil {
			return w.current(), nil
		}
		if begin.IsZero() {
			begin = time.Now()
		}
		if w.opts.stall > 0 && until.IsZero() {
			until = begin.Add(w.opts.stall)
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
// slot to wait for and the reader that has it. begin is when the wait for it began, if there was
// one.
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
		for _, m := range w.readers {
			if !free && m.policy == Block && m.holds(slot) {
				m.pins.Add(1)
				w.noteKept()
				return slot, m, nil
			}
		}
		if !w.isClaimed(slot) { // else it is held, and another one is picked
			w.take(slot, begin) // a slot that is not free has somebody who holds it
			return slot, nil, nil
		}
	}
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
		err := m.see(m.load(offReleased))
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
	if !w.streams {
		return pick(w.blockers, w.frames, w.slot)
	}
	slot = w.slotOf(w.last + 1)
	for _, q := range w.blockers {
		if q.holds(slot) {
			return slot, false
		}
	}
	return slot, true
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
	w.acquired, w.slot, w.frames[slot] = true, slot, 0
	w.sequence = w.last + 1
}

// A keptWord is the word by which a reader that keeps nobody waiting gives slots back, and what it was.
type keptWord struct {
	m    *member
	off  int
	seen uint64
}

func (k keptWord) hasChanged() bool {
	return k.m.gone.Load() || k.m.load(k.off) != k.seen || k.m.hasLeft()
}

// noteKept notes the words by which readers that keep nobody waiting give slots back, for while the writer waits for a
// reader that blocks, and pins them. It runs with mu held.
func (w *Writer) noteKept() {
	w.kept = w.kept[:0]
	for _, m := range w.readers {
		switch {
		case m.policy == Latest && m.claimed != 0:
			w.kept = append(w.kept, keptWord{m, offClaim, m.claimed})
		case m.policy == DropNewest && m.released < m.published:
			w.kept = append(w.kept, keptWord{m, offReleased, m.released})
		default:
			continue
		}
		w.pin(m)
	}
}

// awaitSlot waits until m has released the slot, has left or is gone, or a reader that keeps nobody waiting has given one back.
func (w *Writer) awaitSlot(ctx context.Context, m *member, slot uint64, until time.Time) error {
	defer m.pins.Add(-1)
	defer w.unpin()
	number := m.inSlot[slot]
	done, err := waiting{m.words, offWriterBell, offReaderPolls, until, &w.waited}.await(ctx, func() (bool, error) {
		return m.gone.Load() || m.load(offReleased) >= number || m.hasLeft() || w.closing.Load() || slices.ContainsFunc(w.kept, keptWord.hasChanged), nil
	})
	if err != nil || done {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	err = fmt.Errorf("%w: reader %d has not released frame %d for %s", ErrStalled, m.lease.Number(), m.sequenceOf(number), w.opts.stall)
	if !w.opts.drop {
		return err
	}
	w.drop(m, writerDropped, err)
	return nil
}
