package channel

import "fmt"

// This file decides; it reads and writes no memory of others. The model in model_test.go
// walks through all interleavings of what is decided here.

// A queue is what the writer knows of one reader: which frames it was given, by numbers
// that begin with 1 and have no gaps, and in which slots they are.
type queue struct {
	policy    Policy
	published uint64   // number of the last frame that it was given
	released  uint64   // number of the last frame that it has given back, as far as was looked
	inSlot    []uint64 // number of the last frame it was given in each slot, or 0
}

func newQueue(p Policy, slots uint64) queue { return queue{policy: p, inSlot: make([]uint64, slots)} }

// see notes how far the reader says it has released, or says why that cannot be.
func (q *queue) see(released uint64) error {
	if released < q.released || released > q.published {
		return fmt.Errorf("%w: the reader says that it has released %d frames; it had released %d before, and was given %d", ErrCursor, released, q.released, q.published)
	}
	q.released = released
	return nil
}

// holds reports whether the writer has to leave the slot to the reader.
func (q *queue) holds(slot uint64) bool {
	return q.policy != DropOldest && q.inSlot[slot] > q.released
}

// give notes that the reader gets the frame in the slot, and returns its number.
func (q *queue) give(slot uint64) (number uint64) {
	q.published++
	q.inSlot[slot] = q.published
	return q.published
}

// retires returns the number of the frame that becomes invalid when the slot is reused, or 0.
func (q *queue) retires(slot uint64) uint64 {
	n := q.inSlot[slot]
	if q.policy != DropOldest || n == 0 || q.published-n >= uint64(len(q.inSlot)) {
		return 0 // nobody has it, or its entry is another frame's
	}
	return n
}

// pick chooses the slot of the next frame: the first behind last that nobody holds. Without
// one it is the slot that is to be waited for, that of the oldest frame that only readers
// that block hold; frames has the sequence of each slot's.
func pick(queues []*queue, frames []uint64, last uint64) (slot uint64, free bool) {
	slots := uint64(len(frames))
	oldest := uint64(1<<64 - 1)
	for i := range slots {
		s := (last + 1 + i) % slots
		blocked, kept := false, false
		for _, q := range queues {
			if q.holds(s) {
				blocked = blocked || q.policy == Block
				kept = kept || q.policy == DropNewest
			}
		}
		if !blocked && !kept {
			return s, true
		}
		if !kept && frames[s] < oldest {
			slot, oldest = s, frames[s]
		}
	}
	return slot, false
}

// hasRoom reports whether readers that drop the newest may be given the frame in slot: all
// of them together hold half of the slots at most, so that others need not wait for them.
func hasRoom(queues []*queue, slots, slot uint64) bool {
	kept := uint64(1)
	for s := range slots {
		if s == slot {
			continue
		}
		for _, q := range queues {
			if q.policy == DropNewest && q.holds(s) {
				kept++
				break
			}
		}
	}
	return kept <= slots/2
}

// shareOf returns how many frames each of that many readers that drop the newest may keep.
// They share half of the slots, so that a stopped reader leaves some to the others.
func shareOf(slots uint64, readers int) uint64 { return max(1, slots/2/uint64(readers)) }

// mayKeep reports whether a reader that drops the newest has fewer frames than its share.
func (q *queue) mayKeep(share uint64) bool { return q.published-q.released < share }

// choose is the number of the frame that a reader takes next, or 0 if there is none. A
// reader that was passed by goes on with the newest.
func choose(p Policy, next, published, slots uint64) uint64 {
	switch {
	case published < next:
		return 0
	case p == DropOldest && published-next >= slots:
		return published
	}
	return next
}

// behind is the number of the frame that a reader looks for when the frame of that number was
// not whole any more: the newest, or, if that was the newest, the one after it.
func behind(number, published uint64) uint64 { return max(number+1, published) }

// checkPublished returns an error if the writer cannot have given that many frames: fewer than this reader has seen, or
// more than fit beside those that it has not released. A stream may release frames that are not given yet.
func checkPublished(p Policy, published, seen, released, slots uint64) error {
	if published < seen || p != DropOldest && published > released+slots || published >= given {
		return fmt.Errorf("%w: the writer says that it has given %d frames; it had given %d before, of which %d are released, and has %d slots", ErrCursor, published, seen, released, slots)
	}
	return nil
}
