package channel

import (
	"fmt"

	"github.com/gpufd/gpufd/internal/plain"
)

// This file decides; it reads and writes no memory of others. The model in model_test.go
// walks through all interleavings of what is decided here.

// A queue is what the writer knows of one reader: which frames it was given, by numbers
// that begin with 1 and have no gaps, and in which slots they are.
type queue struct {
	policy    Policy
	published uint64   // number of the last frame that it was given
	released  uint64   // number of the last frame that it has given back, as far as was looked
	inSlot    []uint64 // number of the last frame it was given in each slot, or 0
	returned  []uint64 // in any order: number of the last frame in each slot that it has given back, as far as was looked; else nil
	claimed   uint64   // with Latest: 1 + the slot that it claimed when that was looked at last, or 0
	deniedFor uint64   // with Latest: the sequence for which its claim kept the writer from a slot last
}

func newQueue(p Policy, slots uint64) queue { return queue{policy: p, inSlot: make([]uint64, slots)} }

// newAnyOrder is the queue of a reader that gives slots back in any order.
func newAnyOrder(slots uint64) queue {
	q := newQueue(Block, slots)
	q.returned = make([]uint64, slots)
	return q
}

// see notes how far the reader says it has released, or says why that cannot be.
func (q *queue) see(released uint64) error {
	if released < q.released || released > q.published {
		return fmt.Errorf("%w: the reader says that it has released %d frames; it had released %d before, and was given %d", ErrCursor, released, q.released, q.published)
	}
	q.released = released
	return nil
}

// seeReturned notes which frame in the slot the reader says that it gave back last, or says why that cannot be.
func (q *queue) seeReturned(slot, number uint64) error {
	if number < q.returned[slot] || number > q.inSlot[slot] {
		return fmt.Errorf("%w: the reader says that it has given back frame number %d in slot %d; it had given back number %d there, and was given %d", ErrCursor, number, slot, q.returned[slot], q.inSlot[slot])
	}
	q.returned[slot], q.released = number, max(q.released, number)
	return nil
}

// holds reports whether the writer has to leave the slot to the reader.
func (q *queue) holds(slot uint64) bool {
	switch {
	case q.returned != nil:
		return q.inSlot[slot] > q.returned[slot]
	case q.policy == DropOldest:
		return false
	case q.policy == Latest: // the newest frame, so that there is one
		return q.published > 0 && q.inSlot[slot] == q.published || q.claimed == slot+1
	}
	return q.inSlot[slot] > q.released
}

// seeClaim notes which slot a reader of Latest claims, or says why that cannot be.
func (q *queue) seeClaim(claim uint64) error {
	if slots := uint64(len(q.inSlot)); claim > slots || claim > 0 && q.inSlot[claim-1] == 0 {
		return fmt.Errorf("%w: the reader's claim is %d; want 0, or 1 more than one of the %d slots, in which it was given a frame", ErrCursor, claim, slots)
	}
	q.claimed = claim
	return nil
}

// deny notes that the reader claims the slot which the writer has chosen for the frame of that sequence, or says
// why that cannot be: a reader that claims another slot next takes the newest frame's, which the writer does not choose.
func (q *queue) deny(slot, sequence uint64) error {
	if q.deniedFor == sequence {
		return fmt.Errorf("%w: the reader claims slot %d, after another, while the writer chooses one for frame %d", ErrCursor, slot, sequence)
	}
	q.claimed, q.deniedFor = slot+1, sequence
	return nil
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

// pick chooses the slot of the next frame: the first behind last that nobody holds, and that no stream of the writer has
// still to write. Without one it is the slot that is to be waited for, that of the oldest frame that only readers
// that block hold; frames has the sequence of each slot's, and whole is that of the last frame that was written.
func pick(queues []*queue, frames []uint64, whole, last uint64) (slot uint64, free bool) {
	slots := uint64(len(frames))
	oldest := uint64(1<<64 - 1)
	for i := range slots {
		s := (last + 1 + i) % slots
		blocked, kept := false, false
		for _, q := range queues {
			if q.holds(s) {
				blocked = blocked || q.policy == Block
				kept = kept || q.policy != Block
			}
		}
		if !blocked && !kept {
			if frames[s] <= whole {
				return s, true
			}
			continue
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

// mostLatest returns how many readers of Latest a channel admits. Each may keep a slot from the writer, which needs one
// to write to and one for the newest frame; readers that drop the newest, if there are any, keep half of the slots.
func mostLatest(slots uint64, dropNewest bool) int {
	if dropNewest {
		return max(0, int(slots)-2-int(slots/2))
	}
	return int(slots) - 2
}

// admits returns why a reader of that policy is not admitted beside so many of Latest and of DropNewest, or nil.
func admits(p Policy, slots uint64, latest, dropNewest int) error {
	switch {
	case p == Latest && latest >= mostLatest(slots, dropNewest > 0):
		beside := ""
		if dropNewest > 0 {
			beside = fmt.Sprintf(" beside drop-newest, which keeps %d slots", slots/2)
		}
		return fmt.Errorf("%w: a channel of %d slots admits %s of policy latest%s, and has %d: each may hold a slot, the writer needs one to write to, and one has the newest frame; more need a channel of more slots", ErrPolicy, slots, plain.Count(mostLatest(slots, dropNewest > 0), "reader"), beside, latest)
	case p == DropNewest && latest > mostLatest(slots, true):
		return fmt.Errorf("%w: readers of drop-newest keep up to %d of %d slots, which leaves room for %s of policy latest, and there are %d; both need a channel of more slots", ErrPolicy, slots/2, slots, plain.Count(mostLatest(slots, true), "reader"), latest)
	}
	return nil
}

// choose is the number of the frame that a reader takes next, or 0 if there is none. A
// reader that was passed by goes on with the newest, and one of Latest always does.
func choose(p Policy, next, published, slots uint64) uint64 {
	switch {
	case published < next:
		return 0
	case p == Latest || p == DropOldest && published-next >= slots:
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
	bounded := p != DropOldest && p != Latest
	if published < seen || bounded && published > released+slots || published >= given {
		return fmt.Errorf("%w: the writer says that it has given %d frames; it had given %d before, of which %d are released, and has %d slots", ErrCursor, published, seen, released, slots)
	}
	return nil
}
