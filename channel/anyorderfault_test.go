package channel

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// FAULT 93: a reader is killed while it keeps slots. They are free, and what another keeps stays as it is.
func TestFault93_ReaderOfAnyOrderKilled(t *testing.T) {
	left := make(chan Gone, 1)
	ctx, srv, w := newChannel(t, 4, 64, WithAnyOrder(), OnGone(func(g Gone) { left <- g }))
	other := newReader(t, ctx, srv)
	c := start(t, "reader", task{Path: srv.Path(), Policy: Block, Join: Next, Holds: 3, StopAt: 2, AnyOrder: true})
	c.says(t)
	put(t, ctx, w)
	put(t, ctx, w)
	require.Equal(t, "has 2", c.says(t))
	kept := requireFrame(t, ctx, other, 1)
	require.NoError(t, other.Release(requireFrame(t, ctx, other, 2)))
	put(t, ctx, w)
	put(t, ctx, w)
	acquired := acquiringSlot(t, w)
	require.NoError(t, other.AwaitWanted(soon(t)))
	require.NoError(t, other.Release(requireFrame(t, ctx, other, 3)))
	require.Empty(t, acquired, "the dead one has had every slot")
	c.kill()
	gone(t, left)
	<-acquired
	for n := uint64(5); n <= 20; n++ {
		put(t, ctx, w)
		require.NoError(t, other.Release(requireFrame(t, ctx, other, n-1)))
		requireBytes(t, ctx, kept)
	}
	require.Zero(t, other.Stats().Lost)
}

// FAULT 93: a reader that keeps the writer waiting for too long is dropped, and told so when it gives a frame back.
func TestFault93_ReaderOfAnyOrderIsDropped(t *testing.T) {
	left := make(chan Gone, 1)
	ctx, srv, w := newChannel(t, 2, 64, WithAnyOrder(), WithDropAfter(20*time.Millisecond), OnGone(func(g Gone) { left <- g }))
	r := newReader(t, ctx, srv)
	put(t, ctx, w)
	put(t, ctx, w)
	f, last := requireFrame(t, ctx, r, 1), requireFrame(t, ctx, r, 2)
	put(t, ctx, w)
	require.ErrorIs(t, gone(t, left).Err, ErrStalled)
	require.ErrorIs(t, r.Release(last), ErrDropped)
	require.ErrorIs(t, r.Whole(f), ErrDropped)
	require.ErrorIs(t, r.AwaitWanted(soon(t)), ErrDropped)
}

// FAULT 93: the reader that keeps the most slots is the one that is dropped, whoever keeps the oldest frame.
func TestFault93_WhoKeepsTheMostIsDropped(t *testing.T) {
	left := make(chan Gone, 1)
	ctx, srv, w := newChannel(t, 3, 64, WithAnyOrder(), WithDropAfter(20*time.Millisecond), OnGone(func(g Gone) { left <- g }))
	one, all := newReader(t, ctx, srv), newReader(t, ctx, srv)
	var kept Frame
	for n := uint64(1); n <= 3; n++ {
		put(t, ctx, w)
		requireFrame(t, ctx, all, n)
		if f := requireFrame(t, ctx, one, n); n == 1 {
			kept = f
		} else {
			require.NoError(t, one.Release(f))
		}
	}
	put(t, ctx, w)
	require.ErrorIs(t, gone(t, left).Err, ErrStalled)
	<-all.Done()
	require.ErrorIs(t, all.Err(), ErrDropped)
	requireBytes(t, ctx, kept)
	require.NoError(t, one.Release(kept))
	requireFrame(t, ctx, one, 4)
}

// FAULT 94: the writer is killed while its stream has a frame to publish. What was whole can be taken, and what is kept
// stays as it is, behind the fence too.
func TestFault94_WriterOfAnyOrderKilled(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	path := t.TempDir() + "/s"
	c := start(t, "writer", task{Path: path, Slots: 4, Size: 4096, Frames: 10, StopAt: 4, AnyOrder: true})
	require.Equal(t, "listening", c.says(t))
	r := ok(Open(soon(t), path, "frames", ctx))(t)
	require.Equal(t, "within 4", c.says(t))
	kept := requireFrame(t, ctx, r, 1)
	c.kill()
	<-r.Done()
	require.NoError(t, r.Release(requireFrame(t, ctx, r, 2)))
	third := requireFrame(t, ctx, r, 3)
	_, err := r.Next(soon(t))
	var lost *WriterLostError
	require.ErrorAs(t, err, &lost)
	require.EqualValues(t, 3, lost.Last)
	require.ErrorIs(t, r.AwaitWanted(soon(t)), ErrLost)
	require.NoError(t, r.AwaitFence(soon(t)))
	requireBytes(t, ctx, kept)
	requireBytes(t, ctx, third)
	require.NoError(t, r.Release(third))
	require.NoError(t, r.Whole(kept))
	require.NoError(t, r.Close())
}

// FAULT 95: a word by which a reader gives slots back, and that cannot be, makes an end of that reader, and of no other.
func TestFault95_NonsenseInAnyOrder(t *testing.T) {
	for name, lie := range map[string]struct {
		slot, word uint64
	}{
		"backwards": {0, 0}, "not given yet": {1, 13}, "of another slot": {1, 12}, "huge": {0, 1<<64 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			left := make(chan Gone, 2)
			ctx, srv, w := newChannel(t, 6, 64, WithAnyOrder(), OnGone(func(g Gone) { left <- g }))
			liar, other := newReader(t, ctx, srv), newReader(t, ctx, srv)
			for n := uint64(1); n <= 12; n++ { // all slots were used twice, and all words looked at
				put(t, ctx, w)
				require.NoError(t, liar.Release(requireFrame(t, ctx, liar, n)))
				require.NoError(t, other.Release(requireFrame(t, ctx, other, n)))
			}
			liar.store(returnedAt(lie.slot), lie.word)
			for n := uint64(13); n <= 18; n++ { // it looks again within a round of the slots
				put(t, ctx, w)
				require.NoError(t, other.Release(requireFrame(t, ctx, other, n)))
			}
			require.ErrorIs(t, gone(t, left).Err, ErrCursor)
			<-liar.Done()
			require.ErrorIs(t, liar.Err(), ErrDropped)
			require.Equal(t, 1, w.Readers())
		})
	}
}

// FAULT 95: nonsense of a writer is an error of a reader that keeps frames, and not a hang.
func TestFault95_NonsenseToAnyOrder(t *testing.T) {
	for name, lie := range map[string]func(m *member){
		"backwards":      func(m *member) { m.store(offPublished, 1) },
		"too far":        func(m *member) { m.store(offPublished, 6) },
		"a kept slot":    func(m *member) { m.store(m.at.entry(4)+entrySlot, m.load(m.at.entry(1)+entrySlot)) },
		"no such slot":   func(m *member) { m.store(m.at.entry(4)+entrySlot, 4) },
		"not whole":      func(m *member) { m.store(m.at.entry(4)+entryStamp, 7) },
		"old sequence":   func(m *member) { m.store(m.at.entry(4)+entrySequence, 3) },
		"too many bytes": func(m *member) { m.store(m.at.entry(4)+entryBytes, 65) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, w, r := newPair(t, 4, 64, WithAnyOrder())
			for range 4 {
				put(t, ctx, w)
			}
			requireFrame(t, ctx, r, 1)
			require.NoError(t, r.Release(requireFrame(t, ctx, r, 2)))
			requireFrame(t, ctx, r, 3)
			w.mu.Lock()
			lie(w.readers[0])
			w.mu.Unlock()
			_, err := r.Next(soon(t))
			if name == "backwards" || name == "too far" { // frame 4 is there, whatever its number
				require.NoError(t, err)
				_, err = r.Next(soon(t))
			}
			require.ErrorIs(t, err, ErrCursor)
		})
	}
}

// A frame that a stream still has to publish or to release keeps the memory, and frees nobody: the side is closed once the
// stream has gone on.
func TestCloseInAnyOrder(t *testing.T) {
	ctx, srv := listening(t)
	w := ok(NewWriter(soon(t), ctx, srv, "frames", 3, 64, WithAnyOrder()))(t)
	r := ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
	gate, ws, rs := newGate(t, ctx), newStream(t, ctx), newStream(t, ctx)
	put(t, ctx, w)
	f := requireFrame(t, ctx, r, 1)
	gate.hold(t, rs)
	require.NoError(t, r.ReleaseOn(rs, f))
	gate.hold(t, ws)
	require.NoError(t, w.PublishOn(ws, ok(w.Acquire(soon(t)))(t), Meta{}))
	for _, end := range []func() error{r.Close, w.Close} {
		require.ErrorIs(t, end(), ErrInUse)
	}
	gate.open()
	require.NoError(t, errors.Join(rs.Synchronize(soon(t)), ws.Synchronize(soon(t))))
	require.NoError(t, r.Close())
	require.NoError(t, w.Close())
}

// A writer that is closed while its stream has a frame to publish drops nobody: no stream waits for a reader.
func TestWriterClosedInAnyOrder(t *testing.T) {
	ctx, srv := listening(t)
	w := ok(NewWriter(soon(t), ctx, srv, "frames", 2, 64, WithAnyOrder()))(t)
	r := newReader(t, ctx, srv)
	for n := uint64(1); n <= 3; n++ {
		put(t, ctx, w)
		require.NoError(t, r.Release(requireFrame(t, ctx, r, n)))
	}
	gate, s := newGate(t, ctx), newStream(t, ctx)
	gate.hold(t, s)
	require.NoError(t, w.PublishOn(s, ok(w.Acquire(soon(t)))(t), Meta{}))
	late := newReader(t, ctx, srv)
	require.EqualValues(t, 5, late.First())
	require.ErrorIs(t, w.Close(), ErrInUse)
	require.NoError(t, r.Err())
	gate.open()
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, w.Close())
	require.EqualValues(t, 4, ok(r.Next(soon(t)))(t).Sequence)
	require.ErrorIs(t, errOf(r.Next(soon(t))), ErrEnded)
}

// A frame that the host has published is there for one who joins with the newest.
func TestNewestInAnyOrder(t *testing.T) {
	ctx, srv, w := newChannel(t, 2, 64, WithAnyOrder())
	put(t, ctx, w)
	put(t, ctx, w)
	requireFrame(t, ctx, newReader(t, ctx, srv, WithJoin(Newest)), 2)
}

// A reader that wants the newest frame is admitted when the stream has published it.
func TestNewestIsAwaited(t *testing.T) {
	ctx, srv, w := newChannel(t, 2, 64, WithAnyOrder())
	gate, s := newGate(t, ctx), newStream(t, ctx)
	gate.hold(t, s)
	slot := ok(w.Acquire(soon(t)))(t)
	require.NoError(t, cu.FillAsync(s, slot.Ptr(), uint8(7), 64))
	require.NoError(t, w.PublishOn(s, slot, Meta{}))
	joined := make(chan *Reader, 1)
	wait := soon(t)
	go func() {
		r, _ := Open(wait, srv.Path(), "frames", ctx, WithJoin(Newest))
		joined <- r
	}()
	require.EqualValues(t, 2, newReader(t, ctx, srv).First(), "who wants the next one is there at once")
	select {
	case <-joined:
		require.FailNow(t, "it is there before the frame is")
	case <-time.After(50 * time.Millisecond): // an Open that ends meanwhile would close its cursors later, beside the next test
	}
	gate.open()
	r := <-joined
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	require.EqualValues(t, 1, ok(r.Next(soon(t)))(t).Sequence)
}

// A reader that leaves while it holds a frame gives it back when no stream has work: until then the writer does not write there.
func TestReaderThatHoldsAFrameLeaves(t *testing.T) {
	ctx, srv := listeningSlowly(t)
	w, r := newWriter(t, ctx, srv, 1, 64, WithAnyOrder()), newReader(t, ctx, srv)
	put(t, ctx, w)
	requireFrame(t, ctx, r, 1)
	x := newStranger(t, ctx)
	requireOthersWork(t, r.Close)
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, errOf(w.Acquire(short)), context.DeadlineExceeded, "the stream may read the frame")
	x.free()
	require.NoError(t, r.Close())
	require.NoError(t, errOf(w.Acquire(soon(t))))
}

// FAULT 95: cursors whose words end behind the first entry are refused.
func TestFault95_TooManySlotsInAnyOrder(t *testing.T) {
	s := ok(newShape(mostAnyOrder+1, 64, 0))(t)
	w := words{make([]byte, s.cursorSize())}
	s.write(w)
	w.store(offFlags, flagAnyOrder)
	require.ErrorIs(t, errOf(readShape(w, vmm.Descriptor{Size: s.size()})), ErrCursor)
	w.store(offFlags, 0)
	require.NoError(t, errOf(readShape(w, vmm.Descriptor{Size: s.size()})))
}

// A stream is closed while the driver keeps a call on it, behind other work. Nobody is closed for that: it waits for no frame.
func TestStreamClosedInAnyOrder(t *testing.T) {
	crowd, dev := crowdedDevice(t)
	ctx, srv := cutest.Context(t, dev), listen(t)
	w := newWriter(t, ctx, srv, 3, 64, WithAnyOrder())
	r := newReader(t, ctx, srv)
	gate, rs := newGate(t, ctx), ok(ctx.NewStream())(t)
	put(t, ctx, w)
	f := requireFrame(t, ctx, r, 1)
	gate.hold(t, rs)
	require.NoError(t, r.ReleaseOn(rs, f))
	closed := crowd.inDriver(t, rs.Close)
	select {
	case <-r.Done():
		require.Fail(t, "the reader is closed")
	case <-time.After(closeLimit * 3 / 2): // when a stream that waits for a frame is freed
	}
	put(t, ctx, w)
	put(t, ctx, w)
	acquired := acquiringSlot(t, w)
	require.NoError(t, r.AwaitWanted(soon(t)))
	gate.open()
	require.NoError(t, <-closed)
	require.Equal(t, f.Index, (<-acquired).Index)
	require.NoError(t, r.Err())
}

// Frames by the thousand, to processes that keep some of them and give them back in any order, and to one that is killed
// again and again.
//
//fault:rows 93
func TestSoakInAnyOrder(t *testing.T) {
	ctx, srv := listening(t)
	w := ok(NewWriter(soon(t), ctx, srv, "frames", 16, 256, WithAnyOrder()))(t)
	frames, rng := soakFrames(), newRandom(uint64(time.Now().UnixNano()))
	reader := task{Path: srv.Path(), Policy: Block, Join: Next, AnyOrder: true}
	var readers []*child
	for i := range 3 {
		do := reader
		do.Stall, do.Holds, do.Seed = time.Duration(i)*time.Millisecond, i+1, rng.Uint64()
		c := start(t, "reader", do)
		require.Equal(t, "joined 1", c.says(t))
		readers = append(readers, c)
	}
	var victim *child
	publish(t, ctx, w, frames, func(n uint64) {
		if n%max(1, frames/20) == 0 {
			if victim != nil {
				victim.kill()
			}
			do := reader
			do.Seed, do.Holds, do.Join = n, 5, Join(1+n%2)
			victim = start(t, "reader", do)
		}
	})
	victim.kill()
	require.NoError(t, w.Close())
	for _, c := range readers {
		require.Equal(t, fmt.Sprintf("received %d lost 0 passed 0", frames), c.says(t))
		c.end(t)
	}
}

// Invariant 10: a frame in any order allocates nothing, by hosts and by streams.
func TestAnyOrderDoesNotAllocate(t *testing.T) {
	if cutest.RaceDetector {
		t.Skip("the race detector allocates")
	}
	_, w, r := newPair(t, 4, 64, WithAnyOrder())
	s, wait := hollowStream(t), soon(t)
	m := Meta{Size: 5, User: make([]byte, MaxUser)}
	var err error
	require.Zero(t, testing.AllocsPerRun(1000, func() { err = errors.Join(err, byHosts(wait, w, r, m)) }))
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(1000, func() { err = errors.Join(err, inAnyOrder(w, r, s, m)) }))
	require.NoError(t, err)
}

// inAnyOrder is one frame that streams publish and release; the words are written as the streams would.
func inAnyOrder(w *Writer, r *Reader, s *cu.Stream, m Meta) error {
	wait := context.Background()
	slot, err := w.Acquire(wait)
	if err != nil {
		return err
	}
	if err := w.PublishOn(s, slot, m); err != nil {
		return err
	}
	w.track.word.store(0, w.track.queued.Load())
	r.store(r.entry(slot.Sequence)+entryStamp, 2*slot.Sequence)
	r.store(offPublished, slot.Sequence)
	f, err := r.Next(wait)
	if err != nil {
		return err
	}
	if err := r.ReleaseOn(s, f); err != nil {
		return err
	}
	r.track.word.store(0, r.track.queued.Load())
	r.store(returnedAt(uint64(f.Index)), f.Sequence)
	return nil
}
