package channel

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
)

// inWait begins Next, which waits for a frame that has not come, and returns what it will return.
func inWait(t *testing.T, r *Reader) <-chan error {
	t.Helper()
	end := make(chan error, 1)
	wait := soon(t)
	go func() { end <- errOf(r.Next(wait)) }()
	require.Eventually(t, func() bool { return r.load(offReaderBell)&1 == 1 }, time.Minute, time.Millisecond, "it sleeps")
	return end
}

// While one goroutine waits in Next, others give back the slots that the writer needs for the frame that it waits for, by
// the host and by a stream, ask whether frames are whole, and wait until a slot is wanted.
func TestReleasedWhileNextWaits(t *testing.T) {
	for name, release := range map[string]func(r *Reader, s *cu.Stream, f Frame) error{
		"by the host": func(r *Reader, _ *cu.Stream, f Frame) error { return r.Release(f) },
		"by a stream": func(r *Reader, s *cu.Stream, f Frame) error { return r.ReleaseOn(s, f) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, srv, w := newChannel(t, 2, 64, WithAnyOrder())
			r, other := newReader(t, ctx, srv), newReader(t, ctx, srv)
			s := newStream(t, ctx)
			put(t, ctx, w)
			put(t, ctx, w)
			f := requireFrame(t, ctx, r, 1)
			require.NoError(t, r.Release(requireFrame(t, ctx, r, 2)))
			require.NoError(t, other.Release(requireFrame(t, ctx, other, 1)))
			requireFrame(t, ctx, other, 2)
			end := inWait(t, r)
			acquired := acquiringSlot(t, w)
			require.NoError(t, r.AwaitWanted(soon(t)))
			require.NoError(t, r.Note(5))
			require.NoError(t, r.Whole(f))
			require.Empty(t, end)
			require.NoError(t, release(r, s, f))
			require.Equal(t, f.Index, (<-acquired).Index)
			put(t, ctx, w)
			require.NoError(t, <-end)
		})
	}
}

// One goroutine waits until a slot is wanted, and others give frames back meanwhile, and take the next.
func TestReleasedWhileNothingIsWanted(t *testing.T) {
	ctx, w, r := newPair(t, 3, 64, WithAnyOrder())
	put(t, ctx, w)
	f := requireFrame(t, ctx, r, 1)
	wanted := make(chan error, 1)
	wait, cancel := context.WithCancel(soon(t))
	go func() { wanted <- r.AwaitWanted(wait) }()
	require.Eventually(t, func() bool { return r.load(offReaderBell)&1 == 1 }, time.Minute, time.Millisecond, "it sleeps")
	require.NoError(t, r.Release(f))
	for n := uint64(2); n <= 6; n++ {
		put(t, ctx, w)
		require.NoError(t, r.Release(requireFrame(t, ctx, r, n)))
	}
	require.Empty(t, wanted)
	cancel()
	require.ErrorIs(t, <-wanted, context.Canceled)
}

// Close ends a wait of another goroutine before it unmaps what that looks at.
func TestClosedWhileOthersWait(t *testing.T) {
	ctx, srv := listening(t)
	w := newWriter(t, ctx, srv, 2, 64, WithAnyOrder())
	r := ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
	put(t, ctx, w)
	f := requireFrame(t, ctx, r, 1)
	ends := make(chan error, 1)
	wait := soon(t)
	go func() { ends <- r.AwaitWanted(wait) }()
	next := inWait(t, r)
	require.NoError(t, r.Close())
	require.ErrorIs(t, <-ends, ErrClosed)
	require.ErrorIs(t, <-next, ErrClosed)
	require.ErrorIs(t, r.Release(f), ErrClosed)
	require.ErrorIs(t, r.Whole(f), ErrClosed)
}

// A reader that has given back more frames than there are slots believes the number of a writer that ends.
func TestEndBehindManyInAnyOrder(t *testing.T) {
	ctx, w, r := newPair(t, 2, 64, WithAnyOrder())
	for n := uint64(1); n <= 7; n++ {
		put(t, ctx, w)
		require.NoError(t, r.Release(requireFrame(t, ctx, r, n)))
	}
	require.NoError(t, w.Close())
	<-r.Done()
	require.ErrorIs(t, r.Err(), ErrEnded)
}

// A frame counts as released before its stream is told to release it: the writer may use the slot, and end, before ReleaseOn
// returns.
func TestReleaseOnCountsFirst(t *testing.T) {
	ctx, w, r := newPair(t, 2, 64, WithAnyOrder())
	s := newStream(t, ctx)
	put(t, ctx, w)
	put(t, ctx, w)
	f := requireFrame(t, ctx, r, 1)
	r.track.mu.Lock() // as the driver does that keeps the call
	released := make(chan error, 1)
	go func() { released <- r.ReleaseOn(s, f) }()
	require.Eventually(t, func() bool { return r.givenBack() == 1 }, time.Minute, time.Millisecond)
	r.track.mu.Unlock()
	require.NoError(t, <-released)
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, w.Close())
	<-r.Done()
}

// A frame that a stream does not release, because it is closed meanwhile, is held again.
func TestReleaseOnAClosedStream(t *testing.T) {
	ctx, w, r := newPair(t, 2, 64, WithAnyOrder())
	s := newStream(t, ctx)
	put(t, ctx, w)
	f := requireFrame(t, ctx, r, 1)
	r.track.mu.Lock()
	released := make(chan error, 1)
	go func() { released <- r.ReleaseOn(s, f) }()
	require.Eventually(t, func() bool { return r.givenBack() == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, s.Close())
	r.track.mu.Unlock()
	require.ErrorIs(t, <-released, cu.ErrClosed)
	require.Zero(t, r.givenBack())
	require.NoError(t, r.Release(f))
	require.NoError(t, w.Close())
	<-r.Done()
	require.ErrorIs(t, r.Err(), ErrEnded)
}
