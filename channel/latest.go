package channel

import (
	"cmp"
	"encoding/binary"
	"fmt"
)

// claim takes the newest frame: it claims the slot, and then looks again whether the frame is still whole there. The
// writer marks the frame before it looks at the claim, so one of the two sees the other. It is not ok if the
// writer was first: then there is a newer frame.
func (r *Reader) claim(f *Frame) (ok bool, err error) {
	slot, err := r.newest()
	if err != nil {
		return false, err
	}
	r.store(offClaim, slot+1)
	at := r.entryAt(slot)
	if stamp := r.load(at + entryStamp); stamp%2 == 0 {
		err = r.takeClaimed(f, stamp/2, slot)
		ok = err == nil
	}
	if !ok {
		r.store(offClaim, 0) // before newest is loaded again
	}
	return ok, err
}

// newest returns the slot of the newest frame. Once the writer is lost, it is that of the last whole frame, of which
// the writer may not have said where it is.
func (r *Reader) newest() (slot uint64, err error) {
	if r.writer.lost.Load() {
		if slot, ok := r.find(r.writer.whole); ok {
			return slot, nil
		}
		return 0, cmp.Or(r.dropped(), r.writer.why) // the writer lives, and has gone on
	}
	if slot = r.load(offNewest); slot >= r.slots {
		return 0, fmt.Errorf("%w: the writer says that the newest frame is in slot %d of %d", ErrCursor, slot, r.slots)
	}
	return slot, nil
}

// find returns the slot of the frame of that number, if its entry is whole.
func (r *Reader) find(number uint64) (slot uint64, ok bool) {
	for slot = range r.slots {
		if r.load(r.entryAt(slot)+entryStamp) == 2*number {
			return slot, true
		}
	}
	return 0, false
}

// takeClaimed copies into f what the writer says of the frame in the slot, which does not change any more.
func (r *Reader) takeClaimed(f *Frame, number, slot uint64) error {
	if r.writer.lost.Load() && number > r.writer.whole {
		return cmp.Or(r.dropped(), r.writer.why) // the writer lives, and has gone on
	}
	at := r.entryAt(slot)
	e := r.readEntry(at)
	if number < r.next || e.slot != slot || e.bytes > r.slotSize || e.length > MaxUser || e.sequence <= r.last {
		return fmt.Errorf("%w: the writer published frame %d, number %d, after frame %d, number %d, of %d bytes with %d user bytes, as that of slot %d in slot %d", ErrCursor, e.sequence, number, r.last, r.next-1, e.bytes, e.length, e.slot, slot)
	}
	f.Sequence, f.Index, f.size, f.Time, f.length = e.sequence, int(slot), e.bytes, int64(e.time), e.length
	for i := 0; i < int(e.length); i += 8 {
		binary.LittleEndian.PutUint64(f.user[i:], r.load(at+entryUser+i))
	}
	return r.keep(f, number)
}

// entryOf is where the entry of a frame of this reader begins.
func (r *Reader) entryOf(number, slot uint64) int {
	if r.policy == Latest {
		return r.entryAt(slot)
	}
	return r.shape.entry(number)
}

// skipTo gives back all frames before that number, for a reader of Latest that blocks in a channel for streams. While a
// stream has releases queued, those frames are given back together with the one that is taken.
func (r *Reader) skipTo(number uint64) {
	if number == r.next {
		return
	}
	r.next = number
	if r.byStream && r.load(offReleased) < r.released.Load() {
		return
	}
	r.released.Store(number - 1)
	r.store(offReleased, number-1)
	r.ring(offWriterBell)
}
