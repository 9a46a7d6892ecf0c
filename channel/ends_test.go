package channel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// A reader that was passed by goes on with the newest frame, and takes none that is older.
func TestAfterPassedComesTheNewest(t *testing.T) {
	ctx, srv, w := newChannel(t, 8, 64)
	r := newReader(t, ctx, srv, WithPolicy(DropOldest))
	put(t, ctx, w)
	put(t, ctx, w)
	f := requireFrame(t, ctx, r, 1)
	for range 8 {
		put(t, ctx, w)
	}
	require.ErrorIs(t, r.Release(f), ErrPassed)
	f = requireFrame(t, ctx, r, 10)
	require.Equal(t, uint64(8), r.Stats().Lost)
	require.NoError(t, r.Release(f))
	put(t, ctx, w)
	put(t, ctx, w)
	require.NoError(t, r.Release(requireFrame(t, ctx, r, 11)), "it is in order again")
}

// A reader that is passed by while it holds the newest frame waits for the next.
func TestPassedByWithTheNewestTaken(t *testing.T) {
	ctx, srv, w := newChannel(t, 2, 64)
	r := newReader(t, ctx, srv, WithPolicy(DropOldest))
	put(t, ctx, w)
	f := requireFrame(t, ctx, r, 1)
	put(t, ctx, w)
	second := requireFrame(t, ctx, r, 2)
	put(t, ctx, w)
	require.ErrorIs(t, r.Release(f), ErrPassed)
	require.NoError(t, r.Release(second))
	require.NoError(t, r.Release(requireFrame(t, ctx, r, 3)))
}

// The writer hears when its channel is not offered any more: it is told by whatever it calls.
func TestWriterHearsThatItsServerHasEnded(t *testing.T) {
	ctx, srv, w := newChannel(t, 2, 64)
	r := newReader(t, ctx, srv)
	put(t, ctx, w)
	put(t, ctx, w)
	require.NoError(t, w.Err())
	require.Equal(t, 1, w.Readers())
	waits := make(chan error, 2)
	go func() { waits <- w.AwaitReaders(soon(t), 2) }()
	require.NoError(t, srv.Close())
	<-w.Done()
	require.ErrorIs(t, <-waits, ErrNoOffer)
	require.Zero(t, w.Readers())
	_, err := w.Acquire(soon(t))
	for _, err := range []error{err, w.Err(), w.Publish(Slot{}, Meta{}), w.AwaitReaders(soon(t), 0)} {
		require.ErrorIs(t, err, ErrNoOffer)
		require.ErrorContains(t, err, "its server was closed")
	}
	<-r.Done()
	require.NoError(t, w.Close())
	require.ErrorIs(t, w.Err(), ErrNoOffer, "which was first")
	require.ErrorIs(t, errOf(w.Acquire(soon(t))), ErrClosed)
}

// A slot that was acquired when the server ended cannot be published.
func TestPublishBehindTheServersEnd(t *testing.T) {
	_, srv, w := newChannel(t, 2, 64)
	s, err := w.Acquire(soon(t))
	require.NoError(t, err)
	require.NoError(t, srv.Close())
	<-w.Done()
	require.ErrorIs(t, w.Publish(s, Meta{}), ErrNoOffer)
}

// A writer whose name another offer has taken can go on with the readers that it has, and hears when the
// last of them has gone.
func TestWriterIsReplaced(t *testing.T) {
	dev := cutest.Device(t)
	ctx := cutest.Context(t, dev)
	srv := listen(t)
	w := newWriter(t, ctx, srv, 2, 64)
	r := newReader(t, ctx, srv)
	buf := ok(vmm.New(dev, 64))(t)
	t.Cleanup(func() { require.NoError(t, buf.Close()) })
	replaced := ok(w.offer.Supersede(buf, nil))(t)
	<-r.Attachment().Superseded()
	put(t, ctx, w)
	require.NoError(t, r.Release(requireFrame(t, ctx, r, 1)))
	require.NoError(t, r.Close())
	<-w.Done()
	require.ErrorIs(t, w.Err(), ErrNoOffer)
	require.ErrorContains(t, w.Err(), "another offer has its name")
	require.NoError(t, replaced.Close())
}

// Close closes Done, and says why.
func TestWriterDoneByClose(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	w := newWriter(t, ctx, listen(t), 2, 64)
	require.NoError(t, w.Close())
	<-w.Done()
	require.ErrorIs(t, w.Err(), ErrClosed)
}

// A body of Follow that panics leaves no reader: the suite's leak check is this test's.
func TestFollowWhoseBodyPanics(t *testing.T) {
	ctx, srv, w := newChannel(t, 2, 64)
	require.PanicsWithValue(t, "why", func() {
		for _, err := range Follow(soon(t), srv.Path(), "frames", ctx) {
			require.NoError(t, err)
			panic("why")
		}
	})
	require.Eventually(t, func() bool { return w.Readers() == 0 }, time.Minute, time.Millisecond)
}

// A reader that holds a frame leaves at once, though a stream of its own process waits for the frame's slot.
func TestCloseWhileAStreamWaitsForTheSlot(t *testing.T) {
	ctx, w, r := newPair(t, 2, 64, WithStreams())
	s := newStream(t, ctx)
	warmUp(t, ctx)
	put(t, ctx, w)
	put(t, ctx, w)
	requireFrame(t, ctx, r, 1)
	slot := ok(w.AcquireOn(s))(t)
	require.NoError(t, r.closeUntil(soon(t)))
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, w.PublishOn(s, slot, Meta{}))
}

// A reader that holds a frame leaves at once, though a stream of its own process waits for a frame of another channel, whose
// writer goes on when it has the slot.
func TestCloseWhileAStreamWaitsForAnotherWriter(t *testing.T) {
	ctx, a, r := newPair(t, 2, 64)
	other := listen(t)
	b := newWriter(t, ctx, other, 2, 64, WithStreams())
	s := newStream(t, ctx)
	warmUp(t, ctx)
	q := newReader(t, ctx, other)
	put(t, ctx, a)
	put(t, ctx, a)
	requireFrame(t, ctx, r, 1)
	acquired := acquiringSlot(t, a)
	f := ok(q.NextOn(s))(t)
	require.NoError(t, q.ReleaseOn(s, f))
	closed := make(chan error, 1)
	go func() { closed <- r.closeUntil(soon(t)) }()
	require.EqualValues(t, 3, (<-acquired).Sequence)
	put(t, ctx, b)
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, ends(t, closed))
}

// Calls end at once while Close still waits for another one.
func TestCallsBesideClose(t *testing.T) {
	ctx, w, r := newPair(t, 2, 64, WithAnyOrder())
	put(t, ctx, w)
	f := requireFrame(t, ctx, r, 1)
	r.using.RLock()
	closed := make(chan error, 1)
	go func() { closed <- r.Close() }()
	require.Eventually(t, func() bool {
		if r.using.TryRLock() {
			r.using.RUnlock()
			return false
		}
		return true
	}, time.Minute, time.Millisecond, "it waits for the call that is under way")
	for _, call := range []func() error{func() error { return r.Note(1) }, func() error { return r.Whole(f) }, func() error { return r.Release(f) },
		func() error { return r.AwaitWanted(soon(t)) }} {
		done := make(chan error, 1)
		go func() { done <- call() }()
		require.ErrorIs(t, ends(t, done), ErrClosed)
	}
	r.using.RUnlock()
	require.NoError(t, ends(t, closed))
}
