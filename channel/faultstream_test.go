package channel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// FAULT 96: the reader that a stream of the writer waits for is killed. The stream is freed, all
// can be closed, and another reader misses nothing.
func TestFault96_StreamThatWaitsForADeadReader(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	srv := listen(t)
	left := make(chan Gone, 1)
	w := newWriter(t, ctx, srv, 2, 64, WithStreams(), OnGone(func(g Gone) { left <- g }))
	other := newReader(t, ctx, srv)
	c := start(t, "reader", task{Path: srv.Path(), Policy: Block, Join: Next, StopAt: 1})
	c.says(t)
	s := newStream(t, ctx)
	for range 8 {
		slot, err := w.AcquireOn(s)
		require.NoError(t, err)
		b := make([]byte, 64)
		pattern(b, slot.Sequence)
		require.NoError(t, cu.CopyToDeviceAsync(s, slot.Ptr, b))
		require.NoError(t, w.PublishOn(s, slot, Meta{}))
	}
	require.Equal(t, "has 1", c.says(t))
	require.NoError(t, other.Release(requireFrame(t, ctx, other, 1)))
	require.NoError(t, other.Release(requireFrame(t, ctx, other, 2)))
	done, err := s.Query()
	require.NoError(t, err)
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
	r, err := Open(soon(t), path, "frames", ctx)
	require.NoError(t, err)
	s := newStream(t, ctx)
	var frames []Frame
	for range 6 {
		if len(frames) >= 4 {
			require.NoError(t, r.ReleaseOn(s, frames[len(frames)-4]))
		}
		f, err := r.NextOn(s)
		require.NoError(t, err)
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
			var lost *LostError
			require.ErrorAs(t, err, &lost, "frame %d", f.Sequence)
			require.EqualValues(t, 3, lost.Last)
		}
	}
	_, err = r.NextOn(s)
	require.ErrorIs(t, err, ErrLost)
	require.NoError(t, r.Close())
}

// FAULT 96: a stream that comes late gets the frames that were whole when the writer was killed,
// and no other.
func TestFault96_StreamTakesWhatADeadWriterLeft(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	path := t.TempDir() + "/s"
	c := start(t, "writer", task{Path: path, Slots: 4, Size: 4096, Frames: 10, StopAt: 4, Streams: true})
	require.Equal(t, "listening", c.says(t))
	r, err := Open(soon(t), path, "frames", ctx)
	require.NoError(t, err)
	require.Equal(t, "within 4", c.says(t))
	c.kill()
	<-r.Done()
	requireRest(t, ctx, r, 3, 4096)
	_, err = r.NextOn(newStream(t, ctx))
	require.ErrorIs(t, err, ErrLost)
	require.NoError(t, r.Close())
}

// A stream that comes late gets what was published when the writer was closed.
func TestStreamTakesWhatWasPublished(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	srv := listen(t)
	w := newWriter(t, ctx, srv, 4, 64, WithStreams())
	r := newReader(t, ctx, srv)
	s := newStream(t, ctx)
	for range 3 {
		slot, err := w.AcquireOn(s)
		require.NoError(t, err)
		b := make([]byte, 64)
		pattern(b, slot.Sequence)
		require.NoError(t, cu.CopyToDeviceAsync(s, slot.Ptr, b))
		require.NoError(t, w.PublishOn(s, slot, Meta{}))
	}
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, w.Close())
	<-r.Done()
	requireRest(t, ctx, r, 3, 64)
	_, err := r.NextOn(s)
	require.ErrorIs(t, err, ErrEnded)
}

// requireRest takes the frames up to last by a stream, from the first on.
func requireRest(t *testing.T, ctx *cu.Context, r *Reader, last, size uint64) {
	t.Helper()
	s := newStream(t, ctx)
	for n := uint64(1); n <= last; n++ {
		f, err := r.NextOn(s)
		require.NoError(t, err)
		require.Equal(t, n, f.Sequence)
		b := make([]byte, size)
		require.NoError(t, cu.CopyToHostAsync(s, b, f.Ptr))
		require.NoError(t, r.ReleaseOn(s, f))
		require.NoError(t, s.Synchronize(soon(t)))
		require.NoError(t, r.Check(f))
		require.NoError(t, checkPattern(b, n))
	}
}

// FAULT 96: a side is closed while its stream waits. It drops who keeps that waiting, or says
// that the stream has other work, and nothing hangs.
func TestFault96_ClosedWhileAStreamWaits(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	srv := listen(t)
	w, err := NewWriter(ctx, srv, "frames", 2, 64, WithStreams())
	require.NoError(t, err)
	r, err := Open(soon(t), srv.Path(), "frames", ctx)
	require.NoError(t, err)
	ws, rs := newStream(t, ctx), newStream(t, ctx)
	for range 3 {
		slot, err := w.AcquireOn(ws)
		require.NoError(t, err)
		require.NoError(t, w.PublishOn(ws, slot, Meta{}))
	}
	require.NoError(t, w.Close(), "the reader is dropped")
	<-r.Done()
	require.ErrorIs(t, r.Err(), ErrDropped)
	require.NoError(t, r.Close())

	w, err = NewWriter(ctx, srv, "frames", 2, 64, WithStreams())
	require.NoError(t, err)
	r, err = Open(soon(t), srv.Path(), "frames", ctx)
	require.NoError(t, err)
	_, err = r.NextOn(rs)
	require.NoError(t, err)
	require.NoError(t, r.Close(), "the stream is freed")
	require.NoError(t, w.Close())
}
