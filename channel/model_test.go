package channel

import (
	"fmt"
	"slices"
)

// The model is the protocol of cursors as a machine of small steps: each load or store of a
// word that both sides have is one, and so are half of a frame's bytes. It decides with the
// functions that the package decides with (queue.go). walk goes through all interleavings of
// a writer and two readers with three slots, kills included. TestModelFindsPlantedFaults shows
// that it would notice.

const (
	modelReaders = 2
	modelSlots   = 3
)

// A plant is a fault that the walk has to find.
type plant struct {
	noRetire     bool // the old frame stays whole while its slot is written
	earlyPublish bool // the number is published before the entry is whole
	noSecondLook bool // the reader does not look at the stamp again
	noBlock      bool // the writer takes a slot that a blocking reader has
	alwaysRoom   bool // readers that drop the newest get every frame
	noCountOut   bool // a dead reader stays among those that are waited for
	takesAll     bool // a reader of a dead writer takes what comes late, unfinished too
	noSkip       bool // a reader that was passed by looks for the same frame again
	assumes      bool // a reader takes a number that it was not told yet for one that it was
	forgets      bool // a reader of a dead writer forgets the frame whose number was not published
	notWhole     bool // a reader believes what it read without asking whether it was passed by
}

// word are the shared words of one reader.
type modelWords struct {
	published, released uint8
	stamp, seq, slot    [modelSlots]uint8
}

type modelReader struct {
	pc                         uint8
	alive, member              bool
	next, released, last, seen uint8
	n, e, slot, value          uint8
	lost                       bool
	whole                      uint8
	wPublished, wReleased      uint8 // what the writer knows
	inSlot                     [modelSlots]uint8
}

// isThere reports whether the entry of a frame is whole.
func (w *modelWords) isThere(number uint8) bool { return w.stamp[(number-1)%modelSlots] == 2*number }

// A modelState is all there is; it is comparable, so that it can be found again.
type modelState struct {
	words   [modelReaders]modelWords
	readers [modelReaders]modelReader
	bytes   [modelSlots]uint8 // the sequence that the slot has the bytes of, 0 for a mixture
	frames  [modelSlots]uint8

	pc, at, slot, seq, last uint8
	room                    bool
	alive                   bool
	kills                   uint8
}

// States of the writer.
const (
	wPick = iota
	wLook
	wPickAgain
	wRetire
	wHalf
	wRest
	wRoom
	wOdd
	wEntry
	wEven
	wNumber
	wDone
)

// States of a reader.
const (
	rPeek = iota
	rLook
	rStamp
	rEntry
	rAgain
	rBytes
	rWhole
	rRelease
	rDone
)

type model struct {
	plant
	policies [modelReaders]Policy
	frames   uint8
	kills    uint8
	spares   bool // only the writer is killed
}

func (m *model) queue(s *modelState, i int) *queue {
	r := &s.readers[i]
	q := newQueue(m.policies[i], modelSlots)
	q.published, q.released = uint64(r.wPublished), uint64(r.wReleased)
	for slot, n := range r.inSlot {
		q.inSlot[slot] = uint64(n)
	}
	return &q
}

// members are the queues of readers that the writer counts with.
func (m *model) members(s *modelState) (all []*queue) {
	for i := range s.readers {
		if s.readers[i].member {
			all = append(all, m.queue(s, i))
		}
	}
	return all
}

// next gives each state that one step leads to, or what is wrong.
func (m *model) next(s modelState, visit func(modelState)) error {
	if s.alive && s.pc != wDone {
		n := s
		if err := m.writer(&n); err != nil {
			return err
		}
		visit(n)
	}
	for i := range s.readers {
		r := &s.readers[i]
		if r.alive && r.pc != rDone {
			n := s
			moved, err := m.reader(&n, i)
			if err != nil {
				return err
			}
			if moved {
				visit(n)
			}
		}
		if !r.alive && r.member && s.alive && !m.noCountOut { // its lease has ended
			n := s
			n.readers[i].member = false
			visit(n)
		}
		if r.alive && !s.alive && !r.lost { // the end of the writer shows
			n := s
			n.readers[i].lost, n.readers[i].whole = true, s.words[i].published
			if s.words[i].isThere(s.words[i].published+1) && !m.forgets {
				n.readers[i].whole++
			}
			if m.takesAll {
				n.readers[i].whole++
			}
			visit(n)
		}
	}
	if s.kills < m.kills {
		m.kill(s, visit)
	}
	return nil
}

func (m *model) kill(s modelState, visit func(modelState)) {
	for i := range s.readers {
		if s.readers[i].alive && s.readers[i].pc != rDone && !m.spares {
			n := s
			n.readers[i].alive = false
			n.kills++
			visit(n)
		}
	}
	if s.alive && s.pc != wDone {
		n := s
		n.alive = false
		n.kills++
		visit(n)
	}
}

// writer does one step of Acquire, of the writing, or of Publish.
func (m *model) writer(s *modelState) error {
	switch s.pc {
	case wLook:
		if i := int(s.at); i < modelReaders {
			if r := &s.readers[i]; r.member {
				q := m.queue(s, i)
				if err := q.see(uint64(s.words[i].released)); err != nil {
					return err
				}
				r.wReleased = uint8(q.released)
			}
			s.at++
			return nil
		}
		s.pc, s.at = wPickAgain, 0
	case wPick, wPickAgain:
		frames := make([]uint64, modelSlots)
		for i, f := range s.frames {
			frames[i] = uint64(f)
		}
		queues := m.members(s)
		if m.noBlock {
			queues = nil
		}
		slot, free := pick(queues, frames, uint64(s.slot))
		if !free && s.pc == wPick {
			s.pc = wLook
			return nil
		}
		if !free {
			if !slices.ContainsFunc(queues, func(q *queue) bool { return q.policy == Block }) {
				return fmt.Errorf("the writer waits for readers that drop")
			}
			s.pc = wLook
			return nil
		}
		s.slot, s.seq, s.frames[slot], s.pc = uint8(slot), s.last+1, 0, wRetire
	case wRetire:
		if i := int(s.at); i < modelReaders {
			if r := &s.readers[i]; r.member && !m.noRetire {
				if n := m.queue(s, i).retires(uint64(s.slot)); n != 0 {
					s.words[i].stamp[(n-1)%modelSlots] = uint8(2*n + 1)
				}
			}
			s.at++
			return nil
		}
		s.pc, s.at = wHalf, 0
	case wHalf:
		s.bytes[s.slot], s.pc = 0, wRest
	case wRest:
		s.bytes[s.slot], s.pc = s.seq, wRoom
	case wRoom:
		for i := range s.readers { // each load is one that only grows, so together is as good
			if r := &s.readers[i]; r.member && m.policies[i] == DropNewest {
				r.wReleased = s.words[i].released
			}
		}
		s.room = m.alwaysRoom || hasRoom(m.members(s), modelSlots, uint64(s.slot))
		s.last, s.frames[s.slot], s.pc, s.at = s.seq, s.seq, wOdd, 0
	default:
		m.publish(s)
	}
	return nil
}

// publish does one step of publishing to reader s.at, and goes on to the next one.
func (m *model) publish(s *modelState) {
	i := int(s.at)
	if i == modelReaders {
		s.pc, s.at = wPick, 0
		if s.last == m.frames {
			s.pc = wDone
		}
		return
	}
	r, w := &s.readers[i], &s.words[i]
	if s.pc == wOdd && (!r.member || m.policies[i] == DropNewest && !s.room) {
		s.at++
		return
	}
	n := r.wPublished + 1
	if s.pc != wOdd {
		n = r.wPublished
	}
	at := (n - 1) % modelSlots
	switch s.pc {
	case wOdd:
		r.wPublished, r.inSlot[s.slot] = n, n
		if s.pc = wEntry; m.policies[i] == DropOldest {
			w.stamp[at] = 2*n - 1
		}
		if m.earlyPublish {
			w.published = n
		}
	case wEntry:
		w.seq[at], w.slot[at], s.pc = s.seq, s.slot, wEven
	case wEven:
		w.stamp[at], s.pc = 2*n, wNumber
	case wNumber:
		w.published, s.pc = n, wOdd
		s.at++
	}
}

// reader does one step of Next, of the reading, or of Release. It has not moved if there is
// nothing to take yet.
func (m *model) reader(s *modelState, i int) (moved bool, err error) {
	r, w, policy := &s.readers[i], &s.words[i], m.policies[i]
	at := (r.n + modelSlots - 1) % modelSlots
	again := func() (bool, error) {
		if policy != DropOldest {
			return false, fmt.Errorf("reader %d, %s: frame number %d is not whole", i, policy, r.n)
		}
		if r.pc = rPeek; !m.noSkip {
			r.next = uint8(behind(uint64(r.n), uint64(r.seen)))
		}
		return true, nil
	}
	there := !r.lost && w.isThere(r.next)
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
			if err := checkPublished(policy, uint64(published), uint64(r.seen), uint64(r.released), modelSlots); err != nil {
				return false, err
			}
		}
		if r.seen = told; m.assumes {
			r.seen = published
		}
		r.n = uint8(choose(policy, uint64(r.next), uint64(published), modelSlots))
		switch {
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
	case rStamp:
		if w.stamp[at] != 2*r.n {
			return again()
		}
		r.pc = rEntry
	case rEntry:
		r.e, r.slot, r.pc = w.seq[at], w.slot[at], rAgain
	case rAgain:
		if w.stamp[at] != 2*r.n && !m.noSecondLook {
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
		r.pc = rRelease
	case rRelease:
		w.released, r.released, r.pc = r.n, r.n, rPeek
	}
	return true, nil
}

// isEnd reports whether nobody has anything left to do.
func (s *modelState) isEnd() bool {
	for _, r := range s.readers {
		if r.alive && r.pc != rDone {
			return false
		}
	}
	return !s.alive || s.pc == wDone
}

// walk visits every state of a writer and its readers.
func (m *model) walk() (count int, err error) {
	first := modelState{alive: true}
	for i := range first.readers {
		first.readers[i] = modelReader{alive: true, member: true, next: 1}
	}
	return walk(first, m.next, (*modelState).isEnd)
}
