package channel

import (
	"fmt"
	"slices"
)

// reader does one step of Next, of the reading, or of Release. It has not moved if there is
// nothing to take yet.
func (m *model) reader(s *modelState, i int) (moved bool, err error) {
	r, w, policy := &s.readers[i], &s.words[i], m.policies[i]
	at := m.entry(i, r.n, r.slot)
	again := func() (bool, error) {
		if policy != DropOldest {
			return false, fmt.Errorf("reader %d, %s: frame number %d is not whole", i, policy, r.n)
		}
		if r.pc = rPeek; !m.noSkip {
			r.next = uint8(behind(uint64(r.n), uint64(r.seen)))
		}
		return true, nil
	}
	there := !r.lost && policy != Latest && m.isThere(s, i, r.next)
	switch r.pc {
	case rPeek:
		if r.pc = rLook; there {
			r.seen, r.n, r.pc = max(r.seen, r.next-1), r.next, rStamp
		}
	case rLook:
		published := w.published
		if r.lost {
			published = r.whole
		}
		told, before := published, r.seen
		if told == r.seen {
			published = max(told, r.next-1)
		}
		if !m.takesAll {
			if err := checkPublished(policy, uint64(published), uint64(r.seen), uint64(r.released), uint64(m.slots)); err != nil {
				return false, err
			}
		}
		if r.seen = told; m.assumes {
			r.seen = published
		}
		r.n = uint8(choose(policy, uint64(r.next), uint64(published), uint64(m.slots)))
		switch {
		case r.n != 0 && policy == Latest:
			r.pc = rNewest
		case r.n != 0:
			r.pc = rStamp
		case r.lost && r.next-1 > r.whole:
			return false, fmt.Errorf("reader %d has taken frame number %d of a dead writer, and says that the last whole one is %d", i, r.next-1, r.whole)
		case r.lost || s.pc == wDone:
			r.pc = rDone
		case there: // it looks at both, again and again
			r.pc = rPeek
		default:
			return r.seen != before, nil // its wait may be over, and it looks again
		}
	case rNewest:
		if r.slot, r.n, r.pc = w.newest, 0, rClaim; r.lost {
			at := slices.Index(w.stamp[:], 2*r.whole)
			if at < 0 {
				return false, fmt.Errorf("reader %d: frame number %d of a dead writer is not there", i, r.whole)
			}
			r.slot = uint8(at)
		}
		if stamp := w.stamp[r.slot]; m.noLookAgain && stamp%2 == 0 {
			r.n = stamp / 2
		}
	case rClaim:
		w.claim, r.pc = r.slot+1, rStamp
	case rUnclaim:
		w.claim, r.slot, r.n, r.pc = 0, 0, 0, rPeek
	case rStamp:
		if policy == Latest {
			return true, m.lookAgain(s, i)
		}
		if w.stamp[at] != 2*r.n {
			return again()
		}
		r.pc = rEntry
	case rEntry:
		if r.e, r.pc = w.seq[at], rAgain; policy == Latest && w.slot[at] != r.slot {
			return false, fmt.Errorf("reader %d: the entry of slot %d says %d", i, r.slot, w.slot[at])
		}
		r.slot = w.slot[at]
	case rAgain:
		if policy != Latest && w.stamp[at] != 2*r.n && !m.noSecondLook {
			return again()
		}
		r.pc = rBytes
		switch {
		case r.e <= r.last:
			return false, fmt.Errorf("reader %d, %s: frame %d behind %d", i, policy, r.e, r.last)
		case policy == Block && r.e != r.last+1:
			return false, fmt.Errorf("reader %d blocks and misses what is between %d and %d", i, r.last, r.e)
		}
		r.last, r.next = r.e, r.n+1
	case rBytes:
		r.value, r.pc = s.bytes[r.slot], rWhole
	case rWhole:
		if r.value != r.e && (policy != DropOldest || m.notWhole || w.stamp[at] == 2*r.n) {
			return false, fmt.Errorf("reader %d, %s: frame %d has the bytes of %d", i, policy, r.e, r.value)
		}
		if policy == Latest && w.seq[at] != r.e {
			return false, fmt.Errorf("reader %d: the entry of frame %d, which it holds, is that of %d", i, r.e, w.seq[at])
		}
		r.pc = rRelease
	case rRelease:
		if w.released, r.released, r.pc = r.n, r.n, rPeek; policy == Latest {
			r.pc = rUnclaim
		}
	}
	return true, nil
}

// lookAgain is the look at the stamp of a reader that has claimed a slot.
func (m *model) lookAgain(s *modelState, i int) error {
	r, stamp := &s.readers[i], s.words[i].stamp[s.readers[i].slot]
	if m.noLookAgain {
		stamp = 2 * r.n
	}
	switch {
	case stamp%2 != 0 || r.n == 0 && m.noLookAgain:
		r.pc = rUnclaim
		return nil
	case stamp/2 < r.next:
		return fmt.Errorf("reader %d: the newest frame is number %d, where %d was expected", i, stamp/2, r.next)
	}
	r.n, r.pc = stamp/2, rEntry
	return nil
}
