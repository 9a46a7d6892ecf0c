package channel

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// FAULT 96: the reader that a stream of the writer waits for is killed. The stream is freed, all
// can be closed, and another reader misses nothing.
func TestFault96_StreamThatWaitsForADeadReader(t *testing.T) {
	ctx, srv := listening(t)
	left := make(chan Gone, 1)
	w := newWriter(t, ctx, srv, 2, 64, WithStreams(), OnGone(func(g Gone) { left <- g }))
	other := newReader(t, ctx, srv)
	c := start(t, "reader", task{Path: srv.Path(), Policy: Block, Join: Next, StopAt: 1})
	c.says(t)
	s := newStream(t, ctx)
	for range 8 {
		slot := ok(w.AcquireOn(s))(t)
		b := make([]byte, 64)
		pattern(b, slot.Sequence)
		require.NoError(t, cu.CopyToDeviceAsync(s, slot.Ptr(), b))
		require.NoError(t, w.PublishOn(s, slot, Meta{}))
	}
	require.Equal(t, "has 1", c.says(t))
	require.NoError(t, other.Release(requireFrame(t, ctx, other, 1)))
	require.NoError(t, other.Release(requireFrame(t, ctx, other, 2)))
	done := ok(s.Query())(t)
	require.False(t, done)
	c.kill()
	for n := uint64(3); n <= 8; n++ {
		require.NoError(t, other.Release(requireFrame(t, ctx, other, n)))
	}
	require.NoError(t, s.Synchronize(soon(t)))
	gone(t, left)
}

// FAULT 96: a stream of a reader waits for a frame of a writer that is killed. It is freed, and
// the frame is not good.
func TestFault96_StreamThatWaitsForADeadWriter(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	path := t.TempDir() + "/s"
	c := start(t, "writer", task{Path: path, Slots: 4, Size: 4096, Frames: 10, StopAt: 4, Streams: true})
	require.Equal(t, "listening", c.says(t))
	r := ok(Open(soon(t), path, "frames", ctx))(t)
	s := newStream(t, ctx)
	var frames []Frame
	for range 6 {
		if len(frames) >= 4 {
			require.NoError(t, r.ReleaseOn(s, frames[len(frames)-4]))
		}
		f := ok(r.NextOn(s))(t)
		frames = append(frames, f)
	}
	require.Equal(t, "within 4", c.says(t))
	c.kill()
	require.NoError(t, s.Synchronize(soon(t)))
	<-r.Done()
	for i, f := range frames {
		if err := r.Check(f); i < 3 {
			require.NoError(t, err)
		} else {
			var lost *WriterLostError
			require.ErrorAs(t, err, &lost, "frame %d", f.Sequence)
			require.EqualValues(t, 3, lost.Last)
		}
	}
	require.ErrorIs(t, errOf(r.NextOn(s)), ErrLost)
	require.NoError(t, r.Close())
}

// FAULT 96: a stream that comes late gets the frames that were whole when the writer was killed,
// and no other.
func TestFault96_StreamTakesWhatADeadWriterLeft(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	path := t.TempDir() + "/s"
	c := start(t, "writer", task{Path: path, Slots: 4, Size: 4096, Frames: 10, StopAt: 4, Streams: true})
	require.Equal(t, "listening", c.says(t))
	r := ok(Open(soon(t), path, "frames", ctx))(t)
	require.Equal(t, "within 4", c.says(t))
	c.kill()
	<-r.Done()
	requireRest(t, ctx, r, 3, 4096)
	require.ErrorIs(t, errOf(r.NextOn(newStream(t, ctx))), ErrLost)
	require.NoError(t, r.Close())
}

// A stream that comes late gets what was published when the writer was closed.
func TestStreamTakesWhatWasPublished(t *testing.T) {
	ctx, w, r := newPair(t, 4, 64, WithStreams())
	s := newStream(t, ctx)
	for range 3 {
		slot := ok(w.AcquireOn(s))(t)
		b := make([]byte, 64)
		pattern(b, slot.Sequence)
		require.NoError(t, cu.CopyToDeviceAsync(s, slot.Ptr(), b))
		require.NoError(t, w.PublishOn(s, slot, Meta{}))
	}
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, w.Close())
	<-r.Done()
	requireRest(t, ctx, r, 3, 64)
	require.ErrorIs(t, errOf(r.NextOn(s)), ErrEnded)
}

// requireRest takes the frames up to last by a stream, from the first on.
func requireRest(t *testing.T, ctx *cu.Context, r *Reader, last, size uint64) {
	t.Helper()
	s := newStream(t, ctx)
	for n := uint64(1); n <= last; n++ {
		f := ok(r.NextOn(s))(t)
		require.Equal(t, n, f.Sequence)
		b := make([]byte, size)
		require.NoError(t, cu.CopyToHostAsync(s, b, f.Ptr()))
		require.NoError(t, r.ReleaseOn(s, f))
		require.NoError(t, s.Synchronize(soon(t)))
		require.NoError(t, r.Check(f))
		require.NoError(t, checkPattern(b, n))
	}
}

// FAULT 96: a side is closed while its stream waits. It drops who keeps that waiting, or says
// that the stream has other work, and nothing hangs.
func TestFault96_ClosedWhileAStreamWaits(t *testing.T) {
	ctx, srv := listening(t)
	w := ok(NewWriter(soon(t), ctx, srv, "frames", 2, 64, WithStreams()))(t)
	r := ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
	ws, rs := newStream(t, ctx), newStream(t, ctx)
	for range 3 {
		slot := ok(w.AcquireOn(ws))(t)
		require.NoError(t, w.PublishOn(ws, slot, Meta{}))
	}
	require.NoError(t, w.Close(), "the reader is dropped")
	<-r.Done()
	require.ErrorIs(t, r.Err(), ErrDropped)
	require.NoError(t, r.Close())

	w = ok(NewWriter(soon(t), ctx, srv, "frames", 2, 64, WithStreams()))(t)
	r = ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
	require.NoError(t, errOf(r.NextOn(rs)))
	require.NoError(t, r.Close(), "the stream is freed")
	require.NoError(t, w.Close())
}

// A crowd has the driver keep each call that gives a stream work until the stream has done all its work, once on is
// set, as a driver does that has room for no more.
type crowd struct {
	on   atomic.Bool
	kept atomic.Int32 // calls that it keeps
	drv  *cu.Driver
}

// crowdedDevice is a device whose driver can be crowded.
func crowdedDevice(t *testing.T) (*crowd, *cu.Device) {
	c := &crowd{}
	dev := cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		if givesWork(call) && c.on.Load() {
			c.keep(call)
		}
		return next()
	}))
	c.drv = dev.Driver()
	return c, dev
}

// givesWork reports whether the call is that of BatchMemOps.
func givesWork(call sys.Call) bool { return strings.HasPrefix(call.Symbol(), "cuStreamBatchMemOp") }

// keep waits until the call's stream has done all its work.
func (c *crowd) keep(call sys.Call) {
	driver, s := c.drv.Caller().With(call.Context()), sys.CUstream(call.Arg(0))
	for kept := false; driver.CuStreamQuery(s) == sys.CUDA_ERROR_NOT_READY; kept = true {
		if !kept {
			c.kept.Add(1)
			defer c.kept.Add(-1)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// inDriver starts f, and waits until the driver keeps one of its calls behind a stream that waits.
func (c *crowd) inDriver(t *testing.T, f func() error) chan error {
	t.Helper()
	c.on.Store(true)
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	since := time.Now()
	require.Eventually(t, func() bool {
		if c.kept.Load() == 0 {
			since = time.Now()
		}
		return time.Since(since) > 200*time.Millisecond // a stream that does not wait is done by then, also on a busy machine
	}, time.Minute, time.Millisecond)
	return ended
}

// FAULT 96: the driver has no room for more work of a stream, and keeps the call that brings it.
// The stream waits for a peer that is killed. Both go on.
func TestFault96_DriverWithoutRoom(t *testing.T) {
	t.Run("a reader is killed", func(t *testing.T) {
		crowd, dev := crowdedDevice(t)
		ctx := cutest.Context(t, dev)
		srv := listen(t)
		left := make(chan Gone, 1)
		w := newWriter(t, ctx, srv, 2, 64, WithStreams(), OnGone(func(g Gone) { left <- g }))
		c := start(t, "reader", task{Path: srv.Path(), Policy: Block, Join: Next, StopAt: 1})
		c.says(t)
		s := newStream(t, ctx)
		wrote := crowd.inDriver(t, func() error { return writeOn(ctx, w, s, 5) })
		require.Equal(t, 1, w.Readers(), "whoever asks for other things is not kept")
		require.Equal(t, "has 1", c.says(t))
		c.kill()
		require.NoError(t, <-wrote)
		require.NoError(t, s.Synchronize(soon(t)))
		gone(t, left)
	})
	t.Run("the writer is killed", func(t *testing.T) {
		crowd, dev := crowdedDevice(t)
		ctx := cutest.Context(t, dev)
		path := t.TempDir() + "/s"
		c := start(t, "writer", task{Path: path, Slots: 4, Size: 4096, Frames: 10, StopAt: 2, Streams: true})
		require.Equal(t, "listening", c.says(t))
		r := ok(Open(soon(t), path, "frames", ctx))(t)
		require.Equal(t, "within 2", c.says(t))
		s := newStream(t, ctx)
		took := crowd.inDriver(t, func() error { return nextOn(r, s, 3) })
		c.kill()
		if err := <-took; err != nil {
			require.ErrorIs(t, err, ErrLost)
		}
		<-r.Done()
		require.NoError(t, r.Close())
	})
}

// A side is closed while the driver keeps its call: the peer lives, and does not go on.
func TestFault96_ClosedWithoutRoom(t *testing.T) {
	crowd, dev := crowdedDevice(t)
	ctx := cutest.Context(t, dev)
	srv := listen(t)
	w := ok(NewWriter(soon(t), ctx, srv, "frames", 2, 64, WithStreams()))(t)
	r := ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
	s := newStream(t, ctx)
	require.NoError(t, nextOn(r, s, 1))
	took := crowd.inDriver(t, func() error { return nextOn(r, s, 1) })
	require.NoError(t, r.Close())
	require.NoError(t, <-took)

	r = ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
	require.NoError(t, w.AwaitReaders(soon(t), 1))
	require.NoError(t, writeOn(ctx, w, s, 2))
	require.NoError(t, s.Synchronize(soon(t)))
	wrote := crowd.inDriver(t, func() error { return writeOn(ctx, w, s, 1) })
	require.NoError(t, w.Close())
	require.NoError(t, <-wrote)
	<-r.Done()
	require.ErrorIs(t, r.Err(), ErrDropped)
	require.NoError(t, r.Close())
}

// The writer is closed while the driver keeps its call: the stream waits for one reader, and behind
// that for another, which did not keep it waiting when Close looked first.
func TestFault96_ClosedBehindTwoReaders(t *testing.T) {
	crowd, dev := crowdedDevice(t)
	ctx := cutest.Context(t, dev)
	srv := listen(t)
	w := ok(NewWriter(soon(t), ctx, srv, "frames", 2, 64, WithStreams()))(t)
	first, second := newReader(t, ctx, srv), newReader(t, ctx, srv)
	s := newStream(t, ctx)
	require.NoError(t, writeOn(ctx, w, s, 2))
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, second.Release(requireFrame(t, ctx, second, 1)))
	require.NoError(t, writeOn(ctx, w, s, 2))
	wrote := crowd.inDriver(t, func() error { return writeOn(ctx, w, s, 1) })
	closed := make(chan error, 1)
	go func() { closed <- w.Close() }()
	require.NoError(t, ends(t, closed))
	require.ErrorIs(t, ends(t, wrote), ErrClosed)
	for _, r := range []*Reader{first, second} {
		<-r.Done()
		require.ErrorIs(t, r.Err(), ErrDropped)
	}
}

// A reader is closed while its stream's frame is checked, and Close has begun to free the stream.
func TestFault96_ClosedWhileAFrameIsChecked(t *testing.T) {
	ctx, srv := listening(t)
	newWriter(t, ctx, srv, 2, 64, WithStreams())
	r := ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
	f := ok(r.NextOn(newStream(t, ctx)))(t)
	r.freeing.Store(true)
	checked, closed := make(chan error, 1), make(chan error, 1)
	go func() { checked <- r.Check(f) }()
	require.Eventually(t, func() bool {
		free := r.turn.TryLock()
		if free {
			r.turn.Unlock()
		}
		return !free
	}, time.Minute, time.Millisecond)
	go func() { closed <- r.Close() }()
	require.ErrorIs(t, ends(t, checked), ErrClosed)
	require.NoError(t, ends(t, closed))
}

// A stream is closed while it waits for a peer, and the driver keeps the mark that it is to be given
// before: closing ends, and so does closing the side.
func TestFault96_StreamClosedWithoutRoom(t *testing.T) {
	t.Run("a reader's", func(t *testing.T) {
		crowd, dev := crowdedDevice(t)
		ctx := cutest.Context(t, dev)
		srv := listen(t)
		newWriter(t, ctx, srv, 2, 64, WithStreams())
		r := ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
		s := ok(ctx.NewStream())(t)
		f := ok(r.NextOn(s))(t)
		crowd.on.Store(true)
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		require.NoError(t, ends(t, closed))
		require.ErrorIs(t, r.Check(f), ErrClosed)
		<-r.Done()
		require.ErrorIs(t, r.Err(), ErrClosed)
		go func() { closed <- r.Close() }()
		require.NoError(t, ends(t, closed))
	})
	t.Run("the writer's", func(t *testing.T) {
		crowd, dev := crowdedDevice(t)
		ctx := cutest.Context(t, dev)
		srv := listen(t)
		w := ok(NewWriter(soon(t), ctx, srv, "frames", 2, 64, WithStreams()))(t)
		r := newReader(t, ctx, srv)
		s := ok(ctx.NewStream())(t)
		require.NoError(t, writeOn(ctx, w, s, 2))
		slot := ok(w.AcquireOn(s))(t)
		crowd.on.Store(true)
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		require.NoError(t, ends(t, closed))
		<-r.Done()
		require.ErrorIs(t, r.Err(), ErrDropped)
		other := newStream(t, ctx) // goes on
		require.Eventually(t, func() bool { return w.PublishOn(other, slot, Meta{}) == nil }, time.Minute, time.Millisecond)
		go func() { closed <- w.Close() }()
		require.NoError(t, ends(t, closed))
	})
}

// A side is closed while its stream waits, and the driver keeps the mark that Close asks for.
func TestFault96_ClosedWithoutRoomForAMark(t *testing.T) {
	crowd, dev := crowdedDevice(t)
	ctx := cutest.Context(t, dev)
	srv := listen(t)
	newWriter(t, ctx, srv, 2, 64, WithStreams())
	r := ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
	require.NoError(t, errOf(r.NextOn(newStream(t, ctx))))
	crowd.on.Store(true)
	closed := make(chan error, 1)
	go func() { closed <- r.Close() }()
	require.NoError(t, ends(t, closed))
}

// A side is closed while the driver keeps its call, and its stream waits for something else: Close
// says so, and ends once the stream has gone on.
func TestFault96_ClosedWhileAStreamHasOtherWork(t *testing.T) {
	crowd, dev := crowdedDevice(t)
	ctx := cutest.Context(t, dev)
	srv := listen(t)
	w := ok(NewWriter(soon(t), ctx, srv, "frames", 4, 64, WithStreams()))(t)
	r := ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
	mem := ok(ctx.AllocHost(pageSize, 0))(t)
	word := words{mem.Bytes()}
	defer func() {
		word.store(0, 1) // else the stream still waits if the test has failed
		require.NoError(t, mem.Close())
	}()
	at := mem.Ptr()
	for _, side := range []struct {
		queue func(*cu.Stream) error
		close func() error
	}{
		{func(s *cu.Stream) error { return nextOn(r, s, 1) }, r.Close},
		{func(s *cu.Stream) error { return emptyOn(w, s) }, w.Close},
	} {
		word.store(0, 0)
		s := newStream(t, ctx)
		require.NoError(t, s.BatchMemOps(cu.WaitOp64(at, 1, cu.WaitGEQ)))
		queued := crowd.inDriver(t, func() error { return side.queue(s) })
		closed := make(chan error, 1)
		go func() { closed <- side.close() }()
		require.ErrorIs(t, ends(t, closed), ErrInUse)
		word.store(0, 1)
		require.NoError(t, ends(t, queued))
		require.NoError(t, side.close())
	}
}

// A reader is closed while the driver keeps a call, which it then refuses: there is nothing to free.
func TestFault96_ClosedWhileAStepIsRefused(t *testing.T) {
	refuse := make(chan struct{})
	refuseAll := sync.OnceFunc(func() { close(refuse) })
	ctx := cutest.Context(t, cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		if !givesWork(call) {
			return next()
		}
		<-refuse
		return sys.CUDA_ERROR_OUT_OF_MEMORY
	})))
	srv := listen(t)
	newWriter(t, ctx, srv, 2, 64, WithStreams())
	r := ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
	s, took, closed := newStream(t, ctx), make(chan error, 1), make(chan error, 1)
	t.Cleanup(refuseAll) // else it waits in the driver if the test has failed
	go func() {
		_, err := r.NextOn(s)
		took <- err
	}()
	require.Eventually(t, func() bool { return r.track.queued.Load() == 1 }, time.Minute, time.Millisecond)
	go func() { closed <- r.Close() }()
	require.Eventually(t, func() bool { return r.load(offPublished) == given }, time.Minute, time.Millisecond, "Close frees the stream")
	refuseAll()
	require.ErrorIs(t, ends(t, took), cu.ErrOutOfMemory)
	require.NoError(t, ends(t, closed))
}

// Whoever sleeps until a host wakes it learns that streams have begun to write, which wake nobody.
func TestSleeperLearnsOfStreams(t *testing.T) {
	ctx, w, r := newPair(t, 2, 64, WithStreams())
	require.NoError(t, w.AwaitReaders(soon(t), 1))
	sleeps := func(bell int) { r.words.store(bell, 1) }
	rang := func(bell int) bool { return r.words.load(bell) == 0 }
	s := newStream(t, ctx)
	sleeps(offReaderBell)
	require.NoError(t, writeOn(ctx, w, s, 1))
	require.True(t, rang(offReaderBell))
	f := requireFrame(t, ctx, r, 1)
	sleeps(offWriterBell)
	require.NoError(t, r.ReleaseOn(s, f))
	require.True(t, rang(offWriterBell))
	require.NoError(t, s.Synchronize(soon(t)))
}

// ends is what comes soon.
func ends(t *testing.T, from <-chan error) error {
	t.Helper()
	select {
	case err := <-from:
		return err
	case <-soon(t).Done():
		require.FailNow(t, "it does not end")
		return nil
	}
}

// writeOn and takeOn have a stream pass so many frames.
func writeOn(ctx *cu.Context, w *Writer, s *cu.Stream, frames int) error {
	for range frames {
		slot, err := w.AcquireOn(s)
		if err != nil {
			return err
		}
		b := make([]byte, slot.Size())
		pattern(b, slot.Sequence)
		if err := errors.Join(cu.CopyToDeviceAsync(s, slot.Ptr(), b), w.PublishOn(s, slot, Meta{})); err != nil {
			return err
		}
	}
	return nil
}

// emptyOn has a stream pass a frame without writing it: a driver may keep a copy of pageable memory
// behind a stream that waits.
func emptyOn(w *Writer, s *cu.Stream) error {
	slot, err := w.AcquireOn(s)
	if err != nil {
		return err
	}
	return w.PublishOn(s, slot, Meta{})
}

// nextOn has a stream take so many frames, and release none.
func nextOn(r *Reader, s *cu.Stream, frames int) error {
	for range frames {
		if _, err := r.NextOn(s); err != nil {
			return err
		}
	}
	return nil
}

func takeOn(r *Reader, s *cu.Stream, frames int) error {
	for range frames {
		f, err := r.NextOn(s)
		if err != nil {
			return err
		}
		if err := r.ReleaseOn(s, f); err != nil {
			return err
		}
	}
	return nil
}

// A stream is closed with work that it was given: what it has done is known nevertheless, and another
// one may go on.
func TestStreamClosedWithWork(t *testing.T) {
	ctx, srv, w := newChannel(t, 4, 64, WithStreams())
	r := ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
	first := ok(ctx.NewStream())(t)
	f := ok(r.NextOn(first))(t)
	require.NoError(t, first.Close(), "it waits for the frame")
	second := newStream(t, ctx)
	require.ErrorIs(t, r.ReleaseOn(second, f), ErrOrder)
	put(t, ctx, w)
	require.Eventually(t, func() bool { return r.ReleaseOn(second, f) == nil }, time.Minute, time.Millisecond)
	require.NoError(t, second.Synchronize(soon(t)))

	third := ok(ctx.NewStream())(t)
	require.NoError(t, errOf(r.NextOn(third)))
	require.NoError(t, third.Close())
	require.NoError(t, r.Close(), "the stream is freed")
}

// A frame costs the reader's stream a wait and a write, as few as there can be, and the writer's a
// mark besides.
func TestOperationsOfAFrame(t *testing.T) {
	given := map[uintptr][]int{} // how many operations each call gave a stream
	ctx := cutest.Context(t, cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		result := next()
		if givesWork(call) && result == sys.CUDA_SUCCESS { // an old driver has another of these functions
			given[call.Arg(0)] = append(given[call.Arg(0)], int(call.Arg(1)))
		}
		return result
	})))
	srv := listen(t)
	w := newWriter(t, ctx, srv, 2, 64, WithStreams())
	r := newReader(t, ctx, srv)
	ws, rs := newStream(t, ctx), newStream(t, ctx)
	require.NoError(t, writeOn(ctx, w, ws, 3))
	require.NoError(t, takeOn(r, rs, 3))
	require.NoError(t, rs.Synchronize(soon(t)))
	require.Equal(t, []int{2, 2, 1, 2}, given[uintptr(ws.Handle())])
	require.Equal(t, []int{1, 1, 1, 1, 1, 1}, given[uintptr(rs.Handle())])
}
