package share

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
)

// The host reads a number and waits for it, though a stream of its own is held up.
func TestCounterOnTheHost(t *testing.T) {
	_, ctx := leavesNothing(t)
	gate, s := newGate(t, ctx), newStream(t, ctx)
	mine, theirs := counters(t, ctx, control(t, ctx))
	n, err := mine.Value()
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, mine.Await(soon(t), 0))
	gate.hold(t, s)
	require.NoError(t, mine.Signal(s, 7))
	n, err = mine.Value()
	require.NoError(t, err)
	require.Zero(t, n, "the stream is not there yet")
	results := make(chan error)
	for i := range uint64(7) {
		go func() { results <- mine.Await(soon(t), 1+i) }()
	}
	gate.open(t)
	for range 7 {
		require.NoError(t, <-results)
	}
	n, err = mine.Value()
	require.NoError(t, err)
	require.EqualValues(t, 7, n)
	n, err = theirs.Value()
	require.NoError(t, err)
	require.Zero(t, n, "another slot")
	require.ErrorContains(t, mine.Await(soon(t), given), "counts below")
}

// Who waits on the host and has waited enough breaks nothing.
func TestAwaitThatEnds(t *testing.T) {
	_, ctx := leavesNothing(t)
	s := newStream(t, ctx)
	mine, _ := counters(t, ctx, control(t, ctx))
	limited, cancel := context.WithCancelCause(t.Context())
	late := errors.New("too late")
	cancel(late)
	err := mine.Await(limited, 1)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, late)
	require.NoError(t, mine.Signal(s, 1))
	require.NoError(t, mine.Await(soon(t), 1))
	require.NoError(t, mine.Await(limited, 1), "it is there")
}

// Close of the counter ends what waits for it on the host.
func TestCounterIsClosedWhileTheHostWaits(t *testing.T) {
	_, ctx := leavesNothing(t)
	buf := zeros(t, ctx)
	c, err := NewCounter(ctx, buf, parentSlot)
	require.NoError(t, err)
	results := make(chan error)
	for range 3 {
		go func() { results <- c.Await(soon(t), 1) }()
	}
	require.NoError(t, c.Close())
	for range 3 {
		require.ErrorIs(t, <-results, ErrClosed)
	}
	_, err = c.Value()
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, buf.Close())
}

// Whoever signals a counter that its waiter has given up is told when it looks, and has a
// broken counter from then on. What was never signalled is no number.
func TestCounterThatAnotherHasGivenUp(t *testing.T) {
	_, ctx := leavesNothing(t)
	s, buf := newStream(t, ctx), control(t, ctx)
	mine, other := counters(t, ctx, buf)
	theirs, err := NewCounter(ctx, buf, parentSlot) // as the peer's of the same slot
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, theirs.Close()) })
	limited, cancel := context.WithCancel(t.Context())
	w, err := mine.Wait(limited, s, 1)
	require.NoError(t, err)
	awaited := make(chan error, 1)
	go func() { awaited <- theirs.Await(soon(t), 1) }()
	cancel()
	require.ErrorIs(t, w.Result(), cu.ErrGivenUp)
	require.ErrorIs(t, <-awaited, cu.ErrGivenUp)
	require.ErrorIs(t, theirs.Signal(s, 1), cu.ErrGivenUp)
	_, err = mine.Value()
	require.ErrorIs(t, err, context.Canceled, "the reason is known here")
	require.ErrorIs(t, mine.Await(soon(t), 1), context.Canceled)

	require.NoError(t, s.WriteValue64(other.word, math.MaxUint64, cu.WriteDefault))
	require.NoError(t, s.Synchronize(soon(t)))
	_, err = other.Value()
	require.ErrorContains(t, err, "counter 1 is 0xffffffffffffffff")
	require.NoError(t, other.Signal(s, 1))
}

// Numbers only grow: a signal that would take one back is refused before it is queued.
func TestSignalsGrow(t *testing.T) {
	_, ctx := leavesNothing(t)
	s := newStream(t, ctx)
	mine, _ := counters(t, ctx, control(t, ctx))
	require.ErrorContains(t, mine.Signal(s, 0), "counts from 1")
	require.NoError(t, mine.Signal(s, 5))
	for _, n := range []uint64{1, 4, 5} {
		require.ErrorContains(t, mine.Signal(s, n), "the last signal was 5")
	}
	require.ErrorContains(t, mine.Signal(s, 4), "counter 0 cannot be signalled 4")
	require.ErrorIs(t, mine.Signal(nil, 6), cu.ErrClosed)
	require.NoError(t, mine.Signal(s, 6), "which failed before, and was not queued")
	require.NoError(t, mine.Await(soon(t), 6))
}

// Of two waits in one stream the first is given up: the second says so, whether it is for
// the same counter or for another, which is met.
func TestWaitBehindOneThatWasGivenUp(t *testing.T) {
	for _, same := range []bool{true, false} {
		_, ctx := leavesNothing(t)
		s, signals := newStream(t, ctx), newStream(t, ctx)
		mine, other := counters(t, ctx, control(t, ctx))
		next := other
		if same {
			next = mine
		}
		limited, cancel := context.WithCancel(t.Context())
		first, err := mine.Wait(limited, s, 1)
		require.NoError(t, err)
		second, err := next.Wait(soon(t), s, 2)
		require.NoError(t, err)
		require.NoError(t, other.Signal(signals, 2))
		cancel()
		require.ErrorIs(t, second.Result(), cu.ErrGivenUp)
		require.ErrorIs(t, second.Result(), context.Canceled)
		require.ErrorIs(t, first.Result(), cu.ErrGivenUp)
		require.NoError(t, other.Await(soon(t), 2), "the other counter is as it was")
		require.NoError(t, s.Synchronize(soon(t)))
	}
}

// BenchmarkWaits has a thousand waits outstanding, of streams or of the host, and says
// which part of a CPU they take, the driver's share included.
func BenchmarkWaits(b *testing.B) {
	const many = 1000
	used := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for name, wait := range map[string]func(context.Context, *Counter, *cu.Stream, uint64) error{
		"stream": func(ctx context.Context, c *Counter, s *cu.Stream, n uint64) error {
			w, err := c.Wait(ctx, s, n)
			if err != nil {
				return err
			}
			return w.Result()
		},
		"host": func(ctx context.Context, c *Counter, _ *cu.Stream, n uint64) error { return c.Await(ctx, n) },
	} {
		b.Run(name, func(b *testing.B) {
			_, ctx := leavesNothing(b)
			s, buf := newStream(b, ctx), control(b, ctx)
			for b.Loop() {
				c, err := NewCounter(ctx, buf, parentSlot)
				require.NoError(b, err)
				limited, cancel := context.WithTimeout(b.Context(), time.Second)
				begun, cpu := time.Now(), used()
				var all sync.WaitGroup
				for range many {
					all.Go(func() { _ = wait(limited, c, s, 1) })
				}
				all.Wait()
				b.ReportMetric(100*float64(used()-cpu)/float64(time.Since(begun)), "%CPU")
				b.ReportMetric(float64(runtime.NumGoroutine()), "goroutines")
				cancel()
				require.NoError(b, c.Close())
				require.NoError(b, cu.Fill(ctx, buf.Ptr(), uint8(0), buf.Size()))
			}
		})
	}
}
