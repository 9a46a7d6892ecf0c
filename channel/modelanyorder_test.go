package channel

import (
	"cmp"
	"fmt"
)

// The model of slots that come back in any order: a writer whose host takes slots and describes frames, its stream, which
// writes and publishes them, and two readers that keep frames and give them back one by one. The host may be two frames
// ahead of its stream. A reader's stream that stores what it gives back is no more than a reader that does so later.
// Frames have the same number for both readers, which is their sequence.

// An anyPlant is a fault that the walk has to find.
type anyPlant struct {
	anyWord    bool // the writer takes what was given back last for all that was given back before
	earlyStamp bool // the host stores the stamp when it describes the frame
	numberLast bool // the stream stores the stamp behind the number
	looksAgain bool // a reader looks at the stamp when it gives a frame back
	noSlot     bool // the host describes a frame before it has a slot for it
	silent     bool // the writer does not say that it waits
	takesAll   bool // a reader of a dead writer takes what comes late
	noCountOut bool // a dead reader is waited for
	early      bool // the writer takes a slot that its stream has still to write
	forgets    bool // a reader does not know how many frames it has given back
}

// anyWords are the words of one reader.
type anyWords struct {
	published, wanted         uint8
	stamp, entryOf, entrySlot [modelSlots]uint8
	returned                  [modelSlots]uint8
}

type anyReader struct {
	words                     anyWords
	alive, member, lost, done bool
	pc                        uint8
	next, seen, gaveBack      uint8
	e, slot, whole            uint8
	held                      [modelSlots]uint8 // number of the frame that it keeps in the slot, or 0
	inSlot, returned          [modelSlots]uint8 // what the writer knows
}

// A queuedModel is a frame that the writer's stream has to write and publish.
type queuedModel struct{ number, slot, members uint8 }

type anyState struct {
	readers        [modelReaders]anyReader
	bytes, frames  [modelSlots]uint8
	queue          [2]queuedModel
	alive, stopped bool
	pc, at         uint8 // the host's
	op             uint8 // the stream's
	slot, last     uint8
	kills          uint8
}

// Steps of the writer's host, of its stream and of a reader.
const (
	aPick = iota
	aTell
	aLook
	aDescribe
	aQueue
	aDone

	sHalf    = 0
	sRest    = 1
	sPublish = 2 // two for each reader

	aPeek  = 0
	aEntry = 1
	aAgain = 2
)

type anyModel struct {
	anyPlant
	slots, frames uint8
	keeps         uint8 // frames that a reader has at most
	untilWanted   bool  // readers keep a frame until they are told that the writer waits
	kills         uint8
	alone         bool // there is one reader
}

func (m *anyModel) entry(number uint8) uint8 { return (number - 1) % m.slots }

// queueOf is what the writer knows of reader i.
func (m *anyModel) queueOf(s *anyState, i int) *queue {
	r := &s.readers[i]
	q := newAnyOrder(uint64(m.slots))
	q.published = uint64(s.last)
	for slot := range m.slots {
		q.inSlot[slot], q.returned[slot] = uint64(r.inSlot[slot]), uint64(r.returned[slot])
		q.released = max(q.released, q.returned[slot])
	}
	if m.anyWord {
		q.returned = nil
	}
	return &q
}

// next gives each state that one step leads to, or what is wrong.
func (m *anyModel) next(s anyState, visit func(anyState)) error {
	if err := m.check(&s); err != nil {
		return err
	}
	var failed error
	step := func(may bool, f func(n *anyState) error) {
		if may {
			n := s
			failed = cmp.Or(failed, f(&n))
			visit(n)
		}
	}
	step(s.alive && s.pc != aDone, m.host)
	step(!s.stopped && s.queue[0].number != 0, func(n *anyState) error { m.stream(n); return nil })
	step(!s.alive && !s.stopped, func(n *anyState) error { n.stop(); return nil })
	step(s.alive && s.pc != aDone && s.kills < m.kills, func(n *anyState) error { n.alive = false; n.kills++; return nil })
	for i := range s.readers {
		r := &s.readers[i]
		lives := r.alive && !r.done
		step(lives && i == 0 && s.kills < m.kills, func(n *anyState) error { n.readers[i].alive = false; n.kills++; return nil })
		step(!r.alive && r.member && s.alive && !m.noCountOut, func(n *anyState) error { n.readers[i].member = false; return nil })
		step(lives && !r.lost && (!s.alive || s.pc == aDone && s.queue[0].number == 0), func(n *anyState) error { m.lose(&n.readers[i]); return nil })
		step(lives && m.mayTake(r), func(n *anyState) error { return m.take(&n.readers[i]) })
		for slot := range m.slots {
			step(lives && m.mayRelease(r, slot), func(n *anyState) error { return m.release(&n.readers[i], slot) })
		}
		step(lives && r.lost && r.next > r.whole && r.held == [modelSlots]uint8{}, func(n *anyState) error { n.readers[i].done = true; return nil })
	}
	return failed
}

// stop stops a dead writer's stream. What nobody looks at any more is one state.
func (s *anyState) stop() {
	*s = anyState{readers: s.readers, bytes: s.bytes, kills: s.kills, stopped: true}
	for i := range s.readers {
		r := &s.readers[i]
		r.inSlot, r.returned, r.member, r.words.wanted = [modelSlots]uint8{}, [modelSlots]uint8{}, false, s.readers[i].words.wanted
	}
}

// check says whose frame is not whole while it is kept.
func (m *anyModel) check(s *anyState) error {
	for i, r := range s.readers {
		for slot, number := range r.held {
			if number != 0 && r.alive && s.bytes[slot] != number {
				return fmt.Errorf("reader %d keeps frame %d, and its slot has the bytes of %d", i, number, s.bytes[slot])
			}
		}
	}
	return nil
}

// host does one step of Acquire or of PublishOn.
func (m *anyModel) host(s *anyState) error {
	switch s.pc {
	case aPick:
		return m.pick(s)
	case aTell: // the words of both readers: one that reads its own sees no difference
		for i := range s.readers {
			if r := &s.readers[i]; r.member && !m.silent && r.inSlot != r.returned {
				r.words.wanted = s.last + 1
			}
		}
		s.pc, s.at = aLook, 0
	case aLook:
		return m.look(s)
	case aDescribe:
		if r := &s.readers[s.at]; r.member {
			at := m.entry(s.last + 1)
			if r.words.entryOf[at], r.words.entrySlot[at] = s.last+1, s.slot; m.earlyStamp {
				r.words.stamp[at] = 2 * (s.last + 1)
			}
		}
		if s.at++; s.at == modelReaders {
			if s.pc, s.at = aQueue, 0; m.noSlot && s.frames[s.slot] != 0 {
				s.pc = aPick
			}
		}
	case aQueue:
		m.give(s)
	}
	return nil
}

// pick takes a slot if one is free, and a place in the stream's queue.
func (m *anyModel) pick(s *anyState) error {
	if s.queue[1].number != 0 {
		return nil // the stream has two frames to do, and the state is the same
	}
	frames := make([]uint64, m.slots)
	var queues []*queue
	for slot := range m.slots {
		frames[slot] = uint64(s.frames[slot])
	}
	for i := range s.readers {
		if s.readers[i].member {
			queues = append(queues, m.queueOf(s, i))
		}
	}
	slot, free := pick(queues, frames, m.written(s), uint64(s.slot))
	if !free {
		s.pc = aTell
		return nil
	}
	if f := s.queue[0]; f.number != 0 && f.slot == uint8(slot) {
		return fmt.Errorf("slot %d is taken, and the stream has still to write frame %d there", slot, f.number)
	}
	for i := range s.readers {
		s.readers[i].words.wanted = 0
	}
	s.slot, s.frames[slot], s.pc, s.at = uint8(slot), 0, aDescribe, 0
	return nil
}

// written is the number of the last frame that the stream has published.
func (m *anyModel) written(s *anyState) uint64 {
	if s.queue[0].number == 0 || m.early {
		return uint64(s.last)
	}
	return uint64(s.queue[0].number - 1)
}

// look looks at the words of reader s.at.
func (m *anyModel) look(s *anyState) error {
	r := &s.readers[s.at]
	q := m.queueOf(s, int(s.at))
	for slot := range m.slots {
		if r.member && q.returned != nil {
			if err := q.seeReturned(uint64(slot), uint64(r.words.returned[slot])); err != nil {
				return err
			}
		}
		r.returned[slot] = r.words.returned[slot]
	}
	if s.at++; s.at == modelReaders {
		if s.pc, s.at = aPick, 0; m.noSlot {
			s.pc = aDescribe
		}
	}
	return nil
}

// give queues the frame on the stream.
func (m *anyModel) give(s *anyState) {
	s.last++
	f := queuedModel{number: s.last, slot: s.slot}
	for i := range s.readers {
		if r := &s.readers[i]; r.member {
			r.inSlot[s.slot] = s.last
			f.members |= 1 << i
		}
	}
	at := 0
	if s.queue[0].number != 0 {
		at = 1
	}
	s.queue[at], s.frames[s.slot] = f, s.last
	if s.pc = aPick; s.last == m.frames {
		s.pc = aDone
	}
}

// stream does one step of writing or publishing the first frame of the queue.
func (m *anyModel) stream(s *anyState) {
	f := s.queue[0]
	switch s.op {
	case sHalf:
		s.bytes[f.slot] = 0
	case sRest:
		s.bytes[f.slot] = f.number
	default:
		i := (s.op - sPublish) / 2
		w := &s.readers[i].words
		stamps := (s.op-sPublish)%2 == 0 != m.numberLast
		switch {
		case f.members&(1<<i) == 0:
		case stamps:
			w.stamp[m.entry(f.number)] = 2 * f.number
		default:
			w.published = f.number
		}
	}
	if s.op++; s.op == sPublish+2*modelReaders {
		s.op, s.queue[0], s.queue[1] = 0, s.queue[1], queuedModel{}
	}
}

// lose is what a reader notes when the writer has ended or died.
func (m *anyModel) lose(r *anyReader) {
	r.lost, r.whole = true, r.words.published
	if r.words.stamp[m.entry(r.whole+1)] == 2*(r.whole+1) {
		r.whole++
	}
	if m.takesAll {
		r.whole++
	}
}

func (r *anyReader) holds() (n uint8) {
	for _, number := range r.held {
		if number != 0 {
			n++
		}
	}
	return n
}

// mayTake reports whether the reader's next step of taking a frame is one.
func (m *anyModel) mayTake(r *anyReader) bool {
	there := r.words.stamp[m.entry(r.next)] == 2*r.next || r.words.published >= r.next
	if r.lost {
		there = r.next <= r.whole
	}
	return r.pc != aPeek || there && r.holds() < m.keeps
}

// take does one step of taking the next frame.
func (m *anyModel) take(r *anyReader) error {
	at := m.entry(r.next)
	switch r.pc {
	case aPeek:
		gaveBack := r.gaveBack
		if m.forgets {
			gaveBack = 0
		}
		published := r.words.published
		if err := checkPublished(Block, uint64(published), uint64(r.seen), uint64(gaveBack), uint64(m.slots)); err != nil {
			return err
		}
		r.seen, r.pc = published, aEntry
	case aEntry:
		if r.words.stamp[at] != 2*r.next {
			return fmt.Errorf("frame number %d was given and is not whole", r.next)
		}
		r.e, r.slot, r.pc = r.words.entryOf[at], r.words.entrySlot[at], aAgain
	case aAgain:
		if r.words.stamp[at] != 2*r.next || r.e != r.next {
			return fmt.Errorf("frame %d is there, and number %d was expected", r.e, r.next)
		}
		if r.held[r.slot] != 0 {
			return fmt.Errorf("frame %d is in the slot where frame %d is kept", r.e, r.held[r.slot])
		}
		r.held[r.slot] = r.next
		r.next, r.pc, r.e, r.slot = r.next+1, aPeek, 0, 0
	}
	return nil
}

// mayRelease reports whether the reader may give back what it keeps in the slot.
func (m *anyModel) mayRelease(r *anyReader, slot uint8) bool {
	return r.held[slot] != 0 && r.pc == aPeek && (!m.untilWanted || r.lost || r.words.wanted >= r.next)
}

func (m *anyModel) release(r *anyReader, slot uint8) error {
	number := r.held[slot]
	if m.looksAgain && r.words.stamp[m.entry(number)] != 2*number {
		return fmt.Errorf("frame %d is whole, and its entry is another's", number)
	}
	r.words.returned[slot], r.held[slot] = number, 0
	r.gaveBack++
	return nil
}

// isEnd reports whether nobody has anything left to do.
func (s *anyState) isEnd() bool {
	for _, r := range s.readers {
		if r.alive && !r.done {
			return false
		}
	}
	return s.stopped || s.alive && s.pc == aDone && s.queue[0].number == 0
}

func (m *anyModel) walk() (count int, err error) {
	first := anyState{alive: true}
	for i := range first.readers {
		if i == 0 || !m.alone {
			first.readers[i] = anyReader{alive: true, member: true, next: 1}
		}
	}
	return walk(first, m.next, (*anyState).isEnd)
}
