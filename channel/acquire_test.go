package channel

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
)

// fillBehind publishes the next n frames behind the work that s has.
func fillBehind(t *testing.T, w *Writer, s *cu.Stream, n int) {
	t.Helper()
	for range n {
		slot := ok(w.Acquire(soon(t)))(t)
		require.NoError(t, cu.FillAsync(s, slot.Ptr(), uint8(slot.Sequence), 64))
		require.NoError(t, w.PublishOn(s, slot, Meta{}))
	}
}

// A slot that the writer's own stream has still to write is not free, though no reader has it: none has joined, or the one
// that had it is dropped.
func TestAcquireWaitsForItsStream(t *testing.T) {
	for name, opt := range map[string]WriterOption{"for streams": WithStreams(), "in any order": WithAnyOrder()} {
		for _, reads := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				ctx, srv, w := newChannel(t, 2, 64, opt)
				s, gate := newStream(t, ctx), newGate(t, ctx)
				warmUp(t, ctx)
				var r *Reader
				if reads {
					r = newReader(t, ctx, srv)
				}
				gate.hold(t, s)
				fillBehind(t, w, s, 2)
				if reads {
					require.ErrorIs(t, r.Close(), ErrInUse, "it has left, and its memory waits for the stream")
				}
				acquired := acquiringSlot(t, w)
				require.Eventually(t, func() bool { return atomic.LoadUint32(w.ownBell.bell(0)) == 1 }, time.Minute, time.Millisecond, "it sleeps")
				require.Empty(t, acquired)
				gate.open()
				slot := <-acquired
				require.EqualValues(t, 3, slot.Sequence)
				require.GreaterOrEqual(t, w.track.done(), publishing(1), "the frame that was there")
			})
		}
	}
}

// A slot that a stream has acquired, and that it has still to write, is not given to the host.
func TestAcquireOfWhatAStreamAcquired(t *testing.T) {
	ctx, _, w := newChannel(t, 2, 64, WithStreams())
	s, gate := newStream(t, ctx), newGate(t, ctx)
	warmUp(t, ctx)
	gate.hold(t, s)
	for range 2 {
		slot := ok(w.AcquireOn(s))(t)
		require.NoError(t, w.PublishOn(s, slot, Meta{}))
	}
	slot := ok(w.AcquireOn(s))(t)
	require.ErrorIs(t, errOf(w.Acquire(soon(t))), ErrOrder)
	gate.open()
	require.NoError(t, s.Synchronize(soon(t)))
	require.Equal(t, slot, ok(w.Acquire(soon(t)))(t))
	require.NoError(t, w.Publish(slot, Meta{}))
}

// A reader that keeps a slot whose frame the writer's stream has still to publish does not keep the writer waiting.
func TestStallBeginsWithTheFrame(t *testing.T) {
	ctx, w, r := newPair(t, 2, 64, WithAnyOrder(), WithDropAfter(20*time.Millisecond))
	s, gate := newStream(t, ctx), newGate(t, ctx)
	gate.hold(t, s)
	fillBehind(t, w, s, 2)
	acquired := acquiringSlot(t, w)
	require.NoError(t, r.AwaitWanted(soon(t)))
	select {
	case <-r.Done():
		require.Fail(t, "dropped for a frame that has not come")
	case <-time.After(100 * time.Millisecond):
	}
	gate.open()
	<-r.Done() // now it keeps two
	require.ErrorIs(t, r.Err(), ErrDropped)
	<-acquired
}

// The reader with the oldest frame is dropped, of two that keep as many slots.
func TestTheOldestFrameDecides(t *testing.T) {
	ctx, srv, w := newChannel(t, 4, 64, WithAnyOrder(), WithDropAfter(20*time.Millisecond))
	first, second := newReader(t, ctx, srv), newReader(t, ctx, srv)
	for n := uint64(1); n <= 4; n++ {
		put(t, ctx, w)
		f, g := requireFrame(t, ctx, first, n), requireFrame(t, ctx, second, n)
		if n == 1 || n == 4 {
			require.NoError(t, first.Release(f))
		} else {
			require.NoError(t, second.Release(g))
		}
	}
	put(t, ctx, w)
	<-second.Done()
	require.ErrorIs(t, second.Err(), ErrDropped)
	require.NoError(t, first.Err())
	require.Zero(t, second.load(offReleased), "in any order nobody stores it")
}

// A reader that goes while the writer waits for another one is counted out at once.
func TestGoneWhileAnotherIsAwaited(t *testing.T) {
	left := make(chan Gone, 2)
	ctx, srv, w := newChannel(t, 1, 64, OnGone(func(g Gone) { left <- g }))
	stays, goes := newReader(t, ctx, srv), newReader(t, ctx, srv)
	put(t, ctx, w)
	f := requireFrame(t, ctx, stays, 1)
	requireFrame(t, ctx, goes, 1)
	acquired := acquiringSlot(t, w)
	require.NoError(t, stays.AwaitWanted(soon(t)))
	require.NoError(t, goes.AwaitWanted(soon(t)))
	require.NoError(t, goes.Close())
	gone(t, left)
	require.Empty(t, acquired)
	require.NoError(t, stays.Release(f))
	<-acquired
}

// The frame that a reader released last counts when it is gone, though the writer has not looked since.
func TestGoneReleasedInAnyOrder(t *testing.T) {
	left := make(chan Gone, 1)
	ctx, srv, w := newChannel(t, 4, 64, WithAnyOrder(), OnGone(func(g Gone) { left <- g }))
	r := newReader(t, ctx, srv)
	for n := uint64(1); n <= 3; n++ {
		put(t, ctx, w)
		if f := requireFrame(t, ctx, r, n); n != 1 {
			require.NoError(t, r.Release(f))
		}
	}
	require.NoError(t, r.Close())
	require.EqualValues(t, 3, gone(t, left).Released)
}

// A wait that a stream or another reader may end, too, who ring another bell, looks often.
func TestSeveralAreLookedAtOften(t *testing.T) {
	anyOrder := []WriterOption{WithAnyOrder()}
	for name, c := range map[string]struct {
		opts    []WriterOption
		readers int
		behind  bool
		want    time.Duration
	}{
		"one":               {anyOrder, 1, false, sleepMax},
		"several":           {anyOrder, 2, false, pollMax},
		"one, and a stream": {anyOrder, 1, true, pollMax},
		"several, in order": {nil, 2, false, sleepMax},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, srv, w := newChannel(t, 1, 64, c.opts...)
			for range c.readers {
				newReader(t, ctx, srv)
			}
			put(t, ctx, w)
			_, m, err := w.choose(time.Time{})
			defer w.unpin()
			require.NoError(t, err)
			require.NotNil(t, m)
			pause := sleepMax
			w.waitFor(m, time.Time{}, c.behind).rest(&pause, func() (bool, error) { return true, nil })
			require.Equal(t, c.want, pause)
		})
	}
}
