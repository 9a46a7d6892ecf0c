package channel

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/share"
)

// A member is a reader, as the writer knows it: one that has joined, or is to.
type member struct {
	*cursor
	queue
	at    shape
	lease *share.Lease

	first uint64        // sequence of the frame with number 1
	gone  atomic.Bool   // it is given nothing any more
	why   error         // why; before gone
	left  chan struct{} // closed with gone
	pins  atomic.Int32  // uses of the cursor without the writer's mu
}

// sequenceOf is the sequence of a frame that it was given.
func (m *member) sequenceOf(number uint64) uint64 {
	if number == 0 {
		return 0
	}
	if m.policy != DropNewest { // else it is given every frame
		return m.first + number - 1
	}
	return m.load(m.at.entry(number) + entrySequence)
}

// publish gives it the frame. Its entry is not whole while it is written.
func (m *member) publish(slot, sequence uint64, meta *Meta) {
	n := m.give(slot)
	at := m.at.entry(n)
	if m.policy == Latest {
		at = m.at.entryAt(slot)
	}
	put := m.words.put
	if m.policy == DropOldest { // which may be reading what is there
		put = m.words.store
		put(at+entryStamp, 2*n-1)
	}
	describe(put, at, slot, sequence, meta)
	m.store(at+entryStamp, 2*n)
	if m.policy == Latest {
		m.store(offNewest, slot)
	}
	m.store(offPublished, n)
	m.ring(offReaderBell)
}

// describe puts all words of the entry there but the stamp.
func describe(put func(off int, v uint64), at int, slot, sequence uint64, meta *Meta) {
	put(at+entrySequence, sequence)
	put(at+entrySlot, slot)
	put(at+entryTime, uint64(meta.Time))
	put(at+entryBytes, meta.Size)
	put(at+entryLength, uint64(len(meta.User)))
	for i := 0; i < len(meta.User); i += 8 {
		put(at+entryUser+i, wordOf(meta.User[i:]))
	}
}

// wordOf is the first eight bytes of b, zeros behind its end.
func wordOf(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.LittleEndian.Uint64(b)
	}
	var eight [8]byte
	copy(eight[:], b)
	return binary.LittleEndian.Uint64(eight[:])
}

// host takes care of a reader from its coming to the end of its cursor.
func (w *Writer) host(m *member) {
	defer w.guests.Done()
	if w.awaitJoin(m) {
		w.watch(m)
	}
	w.mu.Lock()
	w.drop(m, writerDropped, m.lease.Err()) // it may live, and its slots are not kept
	w.mu.Unlock()
	_ = m.lookReleased() // nonsense leaves the number that was seen before
	w.release(m)
	gone := Gone{Lease: m.lease.Number(), Noted: m.load(offNoted), Err: m.why}
	if m.released > 0 && m.released <= m.published {
		gone.Released = m.sequenceOf(m.released)
	}
	end := func() error { return closeBesideOthers(w.ctx, closeLimit/10, m.close) }
	err := end()
	inUse := errors.Is(err, ErrInUse)
	if !inUse {
		gone.Err, err = errors.Join(gone.Err, err), nil
	}
	w.opts.onDrop(gone)
	if inUse {
		err = closeLater(end, w.begun)
	}
	w.noteClosed(m, err)
}

// noteClosed leaves to Close of the writer what the host of m could not do or say: to close its cursor, or the error of that.
func (w *Writer) noteClosed(m *member, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.b != nil {
		w.unclosed = append(w.unclosed, m)
	} else {
		w.hostsErr = errors.Join(w.hostsErr, err)
	}
}

// hasLeft reports whether the reader has left. It may keep its lease longer, until its memory can be closed.
func (m *member) hasLeft() bool { return m.load(offReaderState) == readerLeft }

// newestLimit is how long a reader that wants the newest frame, in any order, waits for a stream to publish it.
const newestLimit = 5 * time.Second

// awaitJoin waits until the reader has said how it wants to read, and admits it. It is false
// if that does not come.
func (w *Writer) awaitJoin(m *member) bool {
	var late time.Time // when it is admitted without the newest frame
	for pause := pollMin; ; pause = min(2*pause, sleepMax) {
		switch m.load(offReaderState) {
		case readerJoined:
			if late.IsZero() {
				late = time.Now().Add(newestLimit)
			}
			if w.admit(m, time.Now().After(late)) {
				return true
			}
		case readerLeft:
			return false
		}
		select {
		case <-m.lease.Done():
			return false
		case <-time.After(pause):
		}
	}
}

// admit makes the reader one of those that get the next frame, or ends it. In any order it returns false, and does nothing, if
// a stream has still to publish the newest frame, which the reader wants, unless it is late.
func (w *Writer) admit(m *member, late bool) bool {
	policy, join := Policy(m.load(offPolicy)), Join(m.load(offJoin))
	w.giving.Lock()
	defer w.giving.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.anyOrder && join == Newest && !late && !w.closed && w.byStreams() && w.track.done() < publishing(w.last) {
		return false
	}
	if m.queue = newQueue(policy, w.slots); w.anyOrder {
		m.queue = newAnyOrder(w.slots)
	}
	var err error
	switch {
	case w.closed:
		w.drop(m, writerEnded, nil)
		return true
	case policy < Block || policy > Latest || join != Next && join != Newest:
		err = fmt.Errorf("%w: a reader asks for policy %d and join %d; want 1 to 4, and 1 or 2", ErrCursor, policy, join)
	case len(w.readers) >= w.opts.readers:
		err = fmt.Errorf("%w: the channel has %s, and admits no more", ErrPolicy, plain.Count(len(w.readers), "reader"))
	default:
		err = cmp.Or(w.allows(policy), admits(policy, w.slots, w.count(Latest), w.count(DropNewest)))
	}
	if err != nil {
		w.drop(m, writerRefused, err)
		return true
	}
	m.first = w.last + 1
	if join == Newest && w.last > 0 {
		w.giveNewest(m)
	}
	m.store(offStart, m.first)
	w.readers = append(w.readers, m)
	m.ring(offReaderBell)
	w.moved()
	return true
}

// count returns how many readers of that policy there are. It runs with mu held.
func (w *Writer) count(p Policy) (n int) {
	for _, m := range w.readers {
		if m.policy == p {
			n++
		}
	}
	return n
}

// giveNewest gives a reader that has just joined the last frame, if that is there.
func (w *Writer) giveNewest(m *member) {
	slot := slices.Index(w.frames, w.last)
	if slot < 0 {
		return
	}
	if w.track.done() < publishing(w.last) && w.byStreams() {
		return // it may not be whole yet
	}
	if m.policy == DropNewest {
		queues := []*queue{&m.queue}
		for _, r := range w.readers {
			_ = r.see(r.load(offReleased)) // Acquire drops a reader that wrote nonsense
			queues = append(queues, &r.queue)
		}
		if !hasRoom(queues, w.slots, uint64(slot)) {
			return
		}
	}
	m.first = w.last
	m.publish(uint64(slot), w.last, &w.lastMeta)
}

// leftPause is how often the host of a reader looks whether it has left: then its end may be heard of so much later.
// Acquire looks itself.
const leftPause = 100 * time.Millisecond

// watch waits until the reader has left or its lease has ended, and drops a reader that keeps a stream waiting for
// too long.
func (w *Writer) watch(m *member) {
	stalls := w.opts.stall > 0 && w.streams
	pause := leftPause
	if stalls {
		pause = min(pause, max(time.Millisecond, w.opts.stall/8))
	}
	look := time.NewTicker(pause)
	defer look.Stop()
	var since time.Time
	var held uint64
	for {
		select {
		case <-m.lease.Done():
			return
		case <-m.left:
			return
		case <-look.C:
		}
		if m.hasLeft() {
			return
		}
		if !stalls {
			continue
		}
		switch n, ok := w.blockedBy(m); {
		case !ok:
			since = time.Time{}
		case since.IsZero() || n != held:
			since, held = time.Now(), n
		case time.Since(since) > w.opts.stall:
			w.mu.Lock()
			w.drop(m, writerDropped, fmt.Errorf("%w: a stream has waited %s for reader %d to release frame number %d", ErrStalled, w.opts.stall, m.lease.Number(), n))
			w.mu.Unlock()
		}
	}
}

// drop ends what a reader gets: it is told the state, before any slot is taken that it has,
// and its lease is taken back unless it has ended. State writerOpen tells nothing: the end of
// the lease says that the writer was lost. It runs with mu held, and may be called again.
func (w *Writer) drop(m *member, state uint64, why error) {
	if m.gone.Load() {
		return
	}
	m.why = why
	w.readers = slices.DeleteFunc(w.readers, func(o *member) bool { return o == m })
	if state != writerOpen {
		m.store(offLast, w.last)
		m.store(offWriterState, state)
	}
	m.gone.Store(true)
	close(m.left)
	m.ring(offReaderBell)
	m.ring(offWriterBell) // wakes those who wait here for the reader
	// Without a reason the reader has left, or the lease has ended already.
	if (state == writerDropped || state == writerRefused) && why != nil {
		m.lease.Revoke(why.Error())
	}
	w.moved()
}
