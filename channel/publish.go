package channel

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Meta is what a frame carries besides its bytes. Zero fields have the defaults below.
type Meta struct {
	Time int64  // nanoseconds of CLOCK_MONOTONIC; 0 is the time of the call of Publish
	Size uint64 // bytes of the frame; 0 is all of the slot
	User []byte // up to [MaxUser] bytes of the application's own
}

// check says what is wrong with it.
func (m *Meta) check(slotSize uint64) error {
	if m.Size > slotSize || len(m.User) > MaxUser {
		return fmt.Errorf("channel: a frame of %d bytes, with %d user bytes; want %d and %d at most", m.Size, len(m.User), slotSize, MaxUser)
	}
	return nil
}

// complete makes it what readers are told: with a time and a size.
func (m *Meta) complete(slotSize uint64) {
	if m.Time == 0 {
		m.Time = Now()
	}
	if m.Size == 0 {
		m.Size = slotSize
	}
}

// Now returns the time in nanoseconds of CLOCK_MONOTONIC, the clock of [Frame].Time: their difference is the
// frame's age, in any process of the machine. It makes no system call.
func Now() int64 { return started.monotonic + int64(time.Since(started.at)) }

// started is one instant on both clocks.
var started = func() (s struct {
	at        time.Time
	monotonic int64
}) {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	s.at, s.monotonic = time.Now(), t.Nano()
	return s
}()

// Publish gives the frame in the slot to all readers that have joined. The slot's bytes must be
// there: synchronise the streams that write them first, or use [Writer.PublishOn].
//
// Errors: [ErrOrder] if the slot is not the one that was acquired, or if a stream still has to
// acquire it or to publish earlier frames; [ErrNoOffer]; [ErrClosed].
func (w *Writer) Publish(s Slot, m Meta) error {
	if w.isZero() {
		return errClosed
	}
	w.turn.Lock()
	defer w.turn.Unlock()
	idle := w.track.idle()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.publishes(s, &m); err != nil {
		return err
	}
	if !idle {
		return fmt.Errorf("%w: a stream still has frames to publish; synchronise it first, or publish this one with PublishOn", ErrOrder)
	}
	m.complete(w.slotSize)
	if w.byStreams() {
		w.track.skip(publishing(w.sequence))
	}
	room, share := w.hasRoom()
	for _, r := range w.readers {
		if r.policy == DropNewest && !(room && r.mayKeep(share)) {
			w.skipped++
			continue
		}
		w.given++
		r.publish(w.slot, w.sequence, &m)
	}
	w.finish(&m)
	return nil
}

// publishes says why the slot cannot be published, if so. It runs with mu held.
func (w *Writer) publishes(s Slot, m *Meta) error {
	if err := w.over(); err != nil {
		return err
	}
	if !w.acquired {
		return fmt.Errorf("%w: publishing frame %d, but no slot is acquired; call Acquire or AcquireOn first", ErrOrder, s.Sequence)
	}
	if s.Sequence != w.sequence {
		return fmt.Errorf("%w: publishing frame %d, but the slot of frame %d is acquired; publish that", ErrOrder, s.Sequence, w.sequence)
	}
	return m.check(w.slotSize)
}

// finish notes that the acquired slot has a frame. It runs with mu held.
func (w *Writer) finish(m *Meta) {
	w.acquired, w.last, w.frames[w.slot] = false, w.sequence, w.sequence
	w.lastMeta.Time, w.lastMeta.Size = m.Time, m.Size
	w.lastMeta.User = w.lastUser[:copy(w.lastUser[:], m.User)]
}

// hasRoom reports whether readers that drop the newest get the frame, those of them that have
// fewer than share. It runs with mu held.
func (w *Writer) hasRoom() (room bool, share uint64) {
	w.blockers = w.blockers[:0]
	for _, m := range w.readers {
		if m.policy == DropNewest {
			_ = m.see(m.load(offReleased)) // Acquire drops a reader that wrote nonsense
			w.blockers = append(w.blockers, &m.queue)
		}
	}
	if len(w.blockers) == 0 {
		return true, 0
	}
	return hasRoom(w.blockers, w.slots, w.slot), shareOf(w.slots, len(w.blockers))
}
