package channel

import (
	"fmt"
	"slices"
)

// The model is the protocol of cursors as a machine of small steps: each load or store of a
// word that both sides have is one, and so are half of a frame's bytes. It decides with the
// functions that the package decides with (queue.go). walk goes through all interleavings of
// a writer and two readers with three slots or more, kills included. TestModelFindsPlantedFaults shows
// that it would notice.

const (
	modelReaders = 2
	modelSlots   = 3
	modelMost    = 5 // where two readers take more than three
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
	noClaims     bool // the writer takes a slot without a look at the claims
	looksFirst   bool // the writer looks at a claim, and then marks the frame
	noLookAgain  bool // the reader claims a frame that it has found whole, and does not look again
}

// word are the shared words of one reader.
type modelWords struct {
	published, released uint8
	newest, claim       uint8
	stamp, seq, slot    [modelMost]uint8
}

type modelReader struct {
	pc                         uint8
	alive, member              bool
	next, released, last, seen uint8
	n, e, slot, value          uint8
	lost                       bool
	whole                      uint8
	wPublished, wReleased      uint8 // what the writer knows
	inSlot                     [modelMost]uint8
	claimed, deniedFor         uint8
}

// A modelState is all there is; it is comparable, so that it can be found again.
type modelState struct {
	words   [modelReaders]modelWords
	readers [modelReaders]modelReader
	bytes   [modelMost]uint8 // the sequence that the slot has the bytes of, 0 for a mixture
	frames  [modelMost]uint8

	pc, at, slot, seq, last uint8
	before                  uint8 // the slot of frame last
	room                    bool
	alive                   bool
	kills                   uint8
}

// States of the writer.
const (
	wPick = iota
	wLook
	wPickAgain
	wMark
	wClaim
	wRetire
	wHalf
	wRest
	wRoom
	wOdd
	wEntry
	wEven
	wNewest
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
	rNewest
	rClaim
	rUnclaim
	rDone
)

type model struct {
	plant
	policies [modelReaders]Policy
	slots    uint8
	frames   uint8
	kills    uint8
	spares   bool // only the writer is killed
}

func (m *model) queue(s *modelState, i int) *queue {
	r := &s.readers[i]
	q := newQueue(m.policies[i], uint64(m.slots))
	q.published, q.released = uint64(r.wPublished), uint64(r.wReleased)
	q.claimed, q.deniedFor = uint64(r.claimed), uint64(r.deniedFor)
	for slot := range q.inSlot {
		q.inSlot[slot] = uint64(r.inSlot[slot])
	}
	return &q
}

// entry is where the entry of a frame of reader i is.
func (m *model) entry(i int, number, slot uint8) uint8 {
	if m.policies[i] == Latest {
		return slot
	}
	return (number + m.slots - 1) % m.slots
}

// isThere reports whether the entry of a frame of reader i is whole.
func (m *model) isThere(s *modelState, i int, number uint8) bool {
	if m.policies[i] == Latest {
		return slices.Index(s.words[i].stamp[:], 2*number) >= 0
	}
	return s.words[i].stamp[m.entry(i, number, 0)] == 2*number
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
			if m.isThere(&s, i, s.words[i].published+1) && !m.forgets {
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
				if q.policy == Latest { // which releases nothing that the writer waits for: one step will do
					if err := q.seeClaim(uint64(s.words[i].claim)); err != nil {
						return err
					}
					r.claimed = uint8(q.claimed)
				}
			}
			s.at++
			return nil
		}
		s.pc, s.at = wPickAgain, 0
	case wPick, wPickAgain:
		frames := make([]uint64, m.slots)
		for i := range frames {
			frames[i] = uint64(s.frames[i])
		}
		queues := m.members(s)
		if m.noBlock {
			queues = nil
		}
		slot, free := pick(queues, frames, 1<<63, uint64(s.before))
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
		s.slot, s.seq, s.at, s.pc = uint8(slot), s.last+1, 0, wMark
	case wMark, wClaim:
		return m.askClaims(s)
	case wRetire:
		if i := int(s.at); i < modelReaders {
			if r := &s.readers[i]; r.member && !m.noRetire {
				if n := m.queue(s, i).retires(uint64(s.slot)); n != 0 {
					s.words[i].stamp[m.entry(i, uint8(n), s.slot)] = uint8(2*n + 1)
				}
			}
			s.at++
			return nil
		}
		s.before, s.frames[s.slot], s.pc, s.at = s.slot, 0, wHalf, 0
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
		s.room = m.alwaysRoom || hasRoom(m.members(s), uint64(m.slots), uint64(s.slot))
		s.last, s.frames[s.slot], s.pc, s.at = s.seq, s.seq, wOdd, 0
	default:
		m.publish(s)
	}
	return nil
}

// askClaims marks the frame of reader s.at in the slot, or looks whether the reader claims it.
func (m *model) askClaims(s *modelState) error {
	i := int(s.at)
	if i == modelReaders {
		s.pc, s.at = wRetire, 0
		return nil
	}
	r, w := &s.readers[i], &s.words[i]
	n := r.inSlot[s.slot]
	if m.policies[i] != Latest || !r.member || n == 0 {
		s.pc, s.at = wMark, s.at+1
		return nil
	}
	marks := (s.pc == wMark) != m.looksFirst
	if marks {
		w.stamp[s.slot] = 2*n + 1
	}
	if !marks && !m.noClaims && w.claim == s.slot+1 {
		q := m.queue(s, i)
		if err := q.deny(uint64(s.slot), uint64(s.seq)); err != nil {
			return err
		}
		w.stamp[s.slot] = 2 * n // a step of its own shows no more: a reader that sees the mark takes another frame
		r.claimed, r.deniedFor = uint8(q.claimed), uint8(q.deniedFor)
		s.pc, s.at = wPick, 0
		return nil
	}
	if s.pc == wMark {
		s.pc = wClaim
	} else {
		s.pc, s.at = wMark, s.at+1
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
	at := m.entry(i, n, s.slot)
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
		if w.stamp[at], s.pc = 2*n, wNumber; m.policies[i] == Latest {
			s.pc = wNewest
		}
	case wNewest:
		w.newest, s.pc = s.slot, wNumber
	case wNumber:
		w.published, s.pc = n, wOdd
		s.at++
	}
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
	if m.slots == 0 {
		m.slots = modelSlots
	}
	first := modelState{alive: true}
	for i := range first.readers {
		first.readers[i] = modelReader{alive: true, member: true, next: 1}
	}
	return walk(first, m.next, (*modelState).isEnd)
}
