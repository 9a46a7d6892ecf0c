package channel

import (
	"fmt"
)

// The model of channels for streams: a writer and two readers, each a host that queues ahead, and
// a stream that does what was queued. All have three slots. A host may be killed; its stream may
// go on for any number of steps before it stops. A connection may be cut while both hosts live.
// Each operation of a stream is a step, and so is each store of a host into a cursor.

const (
	modelFrames = 4   // one more than slots; a reader waits for one more that never comes
	modelGiven  = 255 // given, in a byte
)

// A streamPlant is a fault that the walk has to find.
type streamPlant struct {
	noFree       bool // a stream that waits for who is gone is not freed
	freeOnce     bool // it is freed once, and a dead peer's device writes later
	goodAnyway   bool // Check believes a frame that the stream was freed from
	checkBetween bool // Check does not wait for the lock under which the stream is freed
	earlyRelease bool // a reader's stream releases a frame before it has read it
	noWait       bool // the writer's stream does not wait for readers
	noMetaFirst  bool // the number is published before what is said of the frame
	earlyPublish bool // the number is published before the frame is whole
	letGoEarly   bool // the writer lets go of a cursor that its stream has still to do with
	lateState    bool // the writer tells a reader that it was dropped once its slots are taken
	noCountOut   bool // the writer does not notice that a reader is gone
}

// Steps of the writer with a reader that is gone.
const (
	lHere  = iota
	lTold  // the state says that it was dropped
	lFreed // it is given nothing more, and the streams that wait for it are freed
	lLetGo // its cursor is not mapped any more
)

// A modelDevice is one side's process and its stream. at is what the stream does next:
// 8 for each frame from 1, and the operation.
type modelDevice struct {
	alive, stopped bool
	at             uint8
}

// streamReader is a reader, and what the writer knows of it.
type streamReader struct {
	modelDevice
	published, released, state uint8 // words
	meta                       [modelSlots]uint8

	queued, checked, bad      uint8 // frames; bad has a bit for each that was read and was another
	cut, freeing, lost, ended bool
	whole                     uint8

	leaving, until uint8 // the writer's
}

type streamState struct {
	readers [modelReaders]streamReader
	bytes   [modelSlots]uint8

	writer           modelDevice
	acquired, given  uint8 // frames that are queued
	ended            bool
	waits, publishes [modelFrames + 1]uint8 // of each frame: a bit for each reader
	faults           uint8
}

type streamModel struct {
	streamPlant
	faults uint8 // that happen at most
	ahead  uint8 // frames that a host queues before its stream has done them
	not    fault
	// Without all, reader 1 sees that the writer is gone when reader 0 has ended, because they have no
	// word in common; and a connection is cut once the writer uses a slot again.
	all bool
}

// Operations of the writer's stream for a frame, and of a reader's.
const (
	opWait0 = iota
	opWait1
	opHalf
	opRest
	opMeta
	opPublish0
	opPublish1
	opEnd

	opWait    = 0
	opRead    = 1
	opRelease = 2
)

// endOf is where the writer's stream is when it has done all that it was given.
func (s *streamState) endOf() uint8 {
	if s.acquired > s.given {
		return 8*s.acquired + opMeta
	}
	return 8 * (s.acquired + 1)
}

// forget leaves of a reader what the writer looks at: its stream does nothing more.
func (r *streamReader) forget() *streamReader {
	*r = streamReader{modelDevice: modelDevice{alive: r.alive, at: 8}, released: r.released, cut: r.cut, leaving: r.leaving, until: r.until}
	return r
}

// idle reports whether a reader's stream has done all.
func (r *streamReader) idle() bool { return r.at == 8*(r.queued+1) }

// next gives each state that one step leads to, or what is wrong.
func (m *streamModel) next(s streamState, visit func(streamState)) error {
	step := func(may bool, f func(n *streamState)) {
		if may {
			n := s
			f(&n)
			visit(n)
		}
	}
	m.writerHost(&s, step)
	if !s.writer.stopped && s.writer.at < s.endOf() {
		n := s
		if m.writerStream(&n) {
			visit(n)
		}
	}
	for i := range s.readers {
		if err := m.leave(&s, i, step); err != nil {
			return err
		}
		if err := m.readerHost(&s, i, step); err != nil {
			return err
		}
		m.readerStream(&s, i, step)
		m.freeOwn(&s, i, step)
	}
	m.fail(&s, step)
	return nil
}

// A fault is what happens to a side; not of a model are those that do not.
type fault uint8

const (
	writerKilled fault = 1 << iota
	readerKilled
	connectionCut
)

type stepper func(may bool, f func(n *streamState))

// fail has somebody killed or cut off, and the streams of the dead stop.
func (m *streamModel) fail(s *streamState, step stepper) {
	may := func(f fault) bool { return s.faults < m.faults && m.not&f == 0 }
	step(may(writerKilled) && s.writer.alive && !s.ended, func(n *streamState) { n.writer.alive = false; n.faults++ })
	step(!s.writer.alive && !s.writer.stopped, func(n *streamState) {
		n.writer, n.acquired, n.given = modelDevice{stopped: true}, 0, 0 // what nobody looks at any more is one state
		n.waits, n.publishes = [modelFrames + 1]uint8{}, [modelFrames + 1]uint8{}
		for i := range n.readers {
			n.readers[i].leaving, n.readers[i].until = lHere, 0
		}
	})
	for i := range s.readers {
		r := &s.readers[i]
		first := i == 0 || m.faults > 1 // one reader is as good as the other
		step(first && may(readerKilled) && r.alive && !r.ended, func(n *streamState) {
			r := &n.readers[i]
			r.alive, r.checked, r.bad = false, 0, 0 // nobody looks any more
			n.faults++
		})
		step(first && may(connectionCut) && r.alive && !r.ended && !r.cut && (m.all || s.acquired == modelFrames) && s.writer.alive && !s.ended, func(n *streamState) { n.readers[i].cut = true; n.faults++ })
		step(!r.alive && !r.stopped, func(n *streamState) { n.readers[i].forget().stopped = true })
	}
}

// writerHost queues the next frame, or ends in order.
func (m *streamModel) writerHost(s *streamState, step stepper) {
	if !s.writer.alive || s.ended {
		return
	}
	near := s.acquired-min(s.acquired, s.writer.at/8-1) < m.ahead
	step(s.acquired == s.given && s.acquired < modelFrames && near, func(n *streamState) {
		n.acquired++
		for i, r := range s.readers {
			if before := int(n.acquired) - modelSlots; before > 0 && r.leaving < lFreed && s.publishes[before]&(1<<i) != 0 && r.released < uint8(before) && !m.noWait {
				n.waits[n.acquired] |= 1 << i
			}
		}
	})
	step(s.acquired > s.given, func(n *streamState) {
		n.given++
		for i, r := range s.readers {
			if r.leaving < lFreed {
				n.publishes[n.given] |= 1 << i
			}
		}
	})
	here := true
	for _, r := range s.readers {
		here = here && (r.leaving == lHere || r.leaving == lLetGo)
	}
	step(s.given == modelFrames && s.writer.at == s.endOf() && here, func(n *streamState) {
		for i := range n.readers {
			if n.readers[i].leaving == lHere {
				n.readers[i].state = uint8(writerEnded)
			}
		}
		n.ended = true
	})
}

// order is what the writer's stream does, operation by operation.
func (m *streamModel) order(op uint8) uint8 {
	switch {
	case m.noMetaFirst:
		return [...]uint8{opWait0, opWait1, opHalf, opRest, opPublish0, opPublish1, opMeta}[op]
	case m.earlyPublish:
		return [...]uint8{opWait0, opWait1, opHalf, opMeta, opPublish0, opPublish1, opRest}[op]
	}
	return op
}

// writerStream does what is next. It has not moved if it waits.
func (m *streamModel) writerStream(s *streamState) (moved bool) {
	frame := s.writer.at / 8
	slot := (frame - 1) % modelSlots
	switch op := m.order(s.writer.at % 8); op {
	case opWait0, opWait1:
		if s.waits[frame]&(1<<op) != 0 && s.readers[op].released < frame-modelSlots {
			return false
		}
	case opHalf:
		s.bytes[slot] = 0
	case opRest:
		s.bytes[slot] = frame
	case opMeta:
		for i := range s.readers {
			if r := &s.readers[i]; s.publishes[frame]&(1<<i) != 0 && !r.stopped && !r.ended {
				r.meta[slot] = frame
			}
		}
	case opPublish0, opPublish1:
		if r := &s.readers[op-opPublish0]; s.publishes[frame]&(1<<(op-opPublish0)) != 0 && !r.stopped && !r.ended {
			r.published = frame
		}
	}
	if s.writer.at++; s.writer.at%8 == opEnd {
		s.writer.at++
		s.waits[frame] = 0 // which nobody looks at any more
	}
	return true
}

// leave is what the writer does with a reader that is gone.
func (m *streamModel) leave(s *streamState, i int, step stepper) error {
	r := &s.readers[i]
	if !s.writer.alive || s.ended || r.alive && !r.cut || m.noCountOut {
		return nil
	}
	switch r.leaving {
	case lHere:
		step(true, func(n *streamState) {
			if n.readers[i].leaving = lTold; !m.lateState {
				n.readers[i].state = uint8(writerDropped)
			}
		})
	case lTold:
		step(true, func(n *streamState) {
			if n.readers[i].leaving, n.readers[i].until = lFreed, s.endOf(); m.freeOnce {
				n.readers[i].released = modelGiven
			}
		})
	case lFreed:
		if s.writer.at < r.until && !m.letGoEarly {
			step(r.released != modelGiven && !m.noFree && !m.freeOnce, func(n *streamState) { n.readers[i].released = modelGiven })
			return nil
		}
		for at := s.writer.at; at < s.endOf(); at++ {
			frame, op := at/8, at%8
			waits, publishes := s.waits[frame]&(1<<i) != 0, s.publishes[frame]&(1<<i) != 0
			if waits && op == opWait0+uint8(i) || publishes && (op == opMeta || op == opPublish0+uint8(i)) {
				return fmt.Errorf("the cursor of reader %d is let go of, and frame %d has still to do with it", i, frame)
			}
		}
		step(true, func(n *streamState) { n.readers[i].leaving, n.readers[i].state = lLetGo, uint8(writerDropped) })
	}
	return nil
}

// readerHost queues a frame, checks one, or ends.
func (m *streamModel) readerHost(s *streamState, i int, step stepper) error {
	r := &s.readers[i]
	if !r.alive || r.ended {
		return nil
	}
	step(!r.freeing && !r.lost && r.queued <= modelFrames && r.queued-r.checked < m.ahead, func(n *streamState) { n.readers[i].queued++ })
	frame := r.checked + 1
	held := r.freeing && !r.lost && !m.checkBetween
	if r.at >= 8*(frame+1) && !held {
		good := r.state != uint8(writerDropped) && (!r.lost || frame <= r.whole || m.goodAnyway)
		if good && r.bad&(1<<frame) != 0 {
			return fmt.Errorf("frame %d is good by reader %d, which has read another", frame, i)
		}
		step(true, func(n *streamState) { n.readers[i].checked++ })
	}
	step(r.lost && r.idle(), func(n *streamState) { n.readers[i].forget().ended = true })
	return nil
}

// readerStream waits for a frame, reads and releases it.
func (m *streamModel) readerStream(s *streamState, i int, step stepper) {
	r := &s.readers[i]
	if r.stopped || r.idle() {
		return
	}
	frame, op := r.at/8, r.at%8
	slot := (frame - 1) % modelSlots
	if op > 0 && m.earlyRelease {
		op = opRead + opRelease - op
	}
	step(op != opWait || r.published >= frame, func(n *streamState) {
		r := &n.readers[i]
		switch op {
		case opRead:
			if (n.bytes[slot] != frame || r.meta[slot] != frame) && r.alive && (!r.lost || frame <= r.whole || m.goodAnyway) {
				r.bad |= 1 << frame
			}
		case opRelease:
			r.released = frame
		}
		if r.at++; r.at%8 > opRelease {
			r.at = 8 * (frame + 1)
		}
	})
}

// freeOwn is what a reader does when the writer is gone: it frees its stream, and says up to which
// frame all are whole, under one lock.
func (m *streamModel) freeOwn(s *streamState, i int, step stepper) {
	r := &s.readers[i]
	if !r.alive || r.ended || s.writer.alive && !s.ended && !r.cut {
		return
	}
	if first := &s.readers[0]; i > 0 && !m.all && !first.ended && !first.stopped {
		return
	}
	switch {
	case !r.freeing:
		step(true, func(n *streamState) {
			r := &n.readers[i]
			if r.freeing, r.whole = true, r.published; !m.noFree {
				r.published = modelGiven
			}
		})
	case !r.lost:
		step(true, func(n *streamState) { n.readers[i].lost = true })
	default:
		step(!r.idle() && r.published != modelGiven && !m.noFree && !m.freeOnce, func(n *streamState) { n.readers[i].published = modelGiven })
	}
}

// isEnd reports whether nobody has anything left to do.
func (s *streamState) isEnd() bool {
	for _, r := range s.readers {
		if !r.ended && !r.stopped {
			return false
		}
	}
	return s.ended || s.writer.stopped
}

func (m *streamModel) walk() (count int, err error) {
	first := streamState{writer: modelDevice{alive: true, at: 8}}
	for i := range first.readers {
		first.readers[i].modelDevice = modelDevice{alive: true, at: 8}
	}
	return walk(first, m.next, (*streamState).isEnd)
}
