package cu_test

import (
	"context"
	"errors"
	"runtime"
	"runtime/pprof"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// newStream is a stream that goes when t ends.
func newStream(t testing.TB, ctx *cu.Context) *cu.Stream {
	t.Helper()
	return untilEnd(t, ok(ctx.NewStream())(t))
}

// newEvent is an event that goes when t ends.
func newEvent(t testing.TB, ctx *cu.Context, flags cu.EventFlags) *cu.Event {
	t.Helper()
	return untilEnd(t, ok(ctx.NewEvent(flags))(t))
}

// newWords is device memory for n words of eight bytes, all 0.
func newWords(t testing.TB, ctx *cu.Context, n int) cu.DevicePtr {
	t.Helper()
	mem := untilEnd(t, ok(ctx.Alloc(uint64(8*n)))(t))
	require.NoError(t, cu.CopyToDevice(ctx, mem.Ptr(), make([]uint64, n)))
	return mem.Ptr()
}

// hold keeps s busy until the function it returns is called, or t ends.
func hold(t testing.TB, s *cu.Stream) (release func()) {
	t.Helper()
	ctx := s.Context()
	p, other := newWords(t, ctx, 1), newStream(t, ctx)
	require.NoError(t, s.WaitValue32(p, 1, cu.WaitGEQ))
	release = func() {
		t.Helper()
		require.NoError(t, other.WriteValue32(p, 1, cu.WriteDefault))
	}
	t.Cleanup(release)
	return release
}

// isDone asks a stream or an event whether it is done.
func isDone(t testing.TB, of interface{ Query() (bool, error) }) bool {
	t.Helper()
	return ok(of.Query())(t)
}

// staysBusy asks for a while, since there is no telling that nothing happens.
func staysBusy(t testing.TB, of ...interface{ Query() (bool, error) }) {
	t.Helper()
	for until := time.Now().Add(5 * time.Millisecond); time.Now().Before(until); runtime.Gosched() {
		for i, o := range of {
			require.False(t, isDone(t, o), "number %d did not wait", i)
		}
	}
}

// A stream that waits for an event waits for the work before its latest record
// and for nothing later.
func TestEventOrdersStreams(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	a, b, e := newStream(t, ctx), newStream(t, ctx), newEvent(t, ctx, cu.EventDisableTiming)
	p := newWords(t, ctx, 2)
	require.True(t, isDone(t, e), "never recorded")
	require.NoError(t, e.Synchronize(context.Background()))
	require.NoError(t, b.WaitEvent(e))
	require.NoError(t, b.Synchronize(soon(t)))

	release := hold(t, a)
	require.NoError(t, cu.FillAsync(a, p, uint32(7), 2))
	require.NoError(t, e.Record(a))
	require.NoError(t, b.WaitEvent(e))
	require.NoError(t, cu.CopyAsync(b, p.Add(8), p, 8))
	releaseLater := hold(t, a)
	require.NoError(t, e.Record(a)) // does not matter to b
	staysBusy(t, e, a, b)
	release()
	got := make([]uint32, 4)
	require.NoError(t, b.Synchronize(soon(t)))
	require.NoError(t, errors.Join(cu.CopyToHostAsync(b, got, p), b.Synchronize(t.Context())))
	require.Equal(t, []uint32{7, 7, 7, 7}, got)
	staysBusy(t, e, a)
	releaseLater()
	require.NoError(t, e.Synchronize(soon(t)))
	require.True(t, isDone(t, e))
	require.NoError(t, e.Synchronize(context.Background()))
}

// A record outlives its stream, and a wait outlives its event.
func TestEventOfAClosedStream(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	a := ok(ctx.NewStream())(t)
	b, e := newStream(t, ctx), newEvent(t, ctx, cu.EventDefault)
	gone := ok(ctx.NewEvent(cu.EventDefault))(t)
	release := hold(t, a)
	require.NoError(t, e.Record(a))
	require.NoError(t, gone.Record(a))
	require.NoError(t, b.WaitEvent(gone))
	require.NoError(t, gone.Close())
	require.NoError(t, a.Close())
	staysBusy(t, e, b)
	release()
	require.NoError(t, e.Synchronize(soon(t)))
	require.NoError(t, b.Synchronize(soon(t)))
}

// Devices wait for each other's events.
func TestEventOfAnotherDevice(t *testing.T) {
	drv := cutest.Driver(t)
	first, second := cutest.TwoDevices(t, drv)
	ctx, other := cutest.Context(t, first), cutest.Context(t, second)
	a, b, e := newStream(t, ctx), newStream(t, other), newEvent(t, ctx, cu.EventDefault)
	release := hold(t, a)
	require.NoError(t, e.Record(a))
	require.NoError(t, b.WaitEvent(e))
	staysBusy(t, b)
	release()
	require.NoError(t, b.Synchronize(soon(t)))

	err := e.Record(b)
	require.ErrorIs(t, err, cu.ErrInvalidHandle)
	require.ErrorContains(t, err, "cuEventRecord")
	require.ErrorContains(t, err, "another context")
}

// FAULTS 64: a wait that is given up leaves nothing behind, in Go or in the
// driver.
func TestFault64_WaitForEventIsGivenUp(t *testing.T) {
	s, _, _, ctx := spiedContext(t)
	stream, e := newStream(t, ctx), newEvent(t, ctx, cu.EventDefault)
	release := hold(t, stream)
	require.NoError(t, e.Record(stream))
	goroutines, threads := runtime.NumGoroutine(), pprof.Lookup("threadcreate").Count()
	for range 30 {
		limited, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		require.ErrorIs(t, e.Synchronize(limited), context.DeadlineExceeded)
		require.ErrorIs(t, stream.Synchronize(limited), context.DeadlineExceeded)
		require.ErrorIs(t, ctx.Synchronize(limited), context.DeadlineExceeded)
		cancel()
	}
	for late := soon(t); runtime.NumGoroutine() > goroutines; runtime.Gosched() { // a deadline's own may be about to end
		require.NoError(t, late.Err(), "goroutines were left behind")
	}
	require.Less(t, pprof.Lookup("threadcreate").Count(), threads+30)
	require.Zero(t, s.count("cuEventSynchronize"))
	release()
	require.NoError(t, e.Synchronize(soon(t)))
}

func TestElapsed(t *testing.T) {
	for _, drv := range []*cu.Driver{cutest.Driver(t), cutest.Driver(t, without(t, "cuEventElapsedTime_v2"))} {
		ctx := cutest.Context(t, firstDevice(t, drv))
		stream := newStream(t, ctx)
		first, second, third := newEvent(t, ctx, cu.EventDefault), newEvent(t, ctx, cu.EventBlockingSync), newEvent(t, ctx, cu.EventDefault)
		untimed := newEvent(t, ctx, cu.EventDisableTiming)
		begin := time.Now()
		require.NoError(t, first.Record(stream))
		require.NoError(t, first.Synchronize(soon(t)))
		release := hold(t, stream)
		require.NoError(t, second.Record(stream))
		require.NoError(t, third.Record(stream))
		require.NoError(t, untimed.Record(stream))
		require.ErrorIs(t, errOf(second.Elapsed(first)), cu.ErrNotReady)
		from := time.Now()
		for time.Since(from) < 3*time.Millisecond {
		}
		release()
		require.NoError(t, stream.Synchronize(soon(t)))
		upto := time.Since(begin) + time.Second

		took := ok(second.Elapsed(first))(t)
		require.Greater(t, took, 3*time.Millisecond)
		require.Less(t, took, upto)
		require.Equal(t, -took, ok(first.Elapsed(second))(t))
		require.GreaterOrEqual(t, ok(third.Elapsed(first))(t), took)
		require.Zero(t, ok(first.Elapsed(first))(t))

		require.ErrorIs(t, errOf(untimed.Elapsed(first)), cu.ErrInvalidHandle)
		require.ErrorIs(t, errOf(first.Elapsed(newEvent(t, ctx, cu.EventDefault))), cu.ErrInvalidHandle, "never recorded")
	}
}

func TestEventFlags(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	require.ErrorIs(t, errOf(ctx.NewEvent(1<<10)), cu.ErrInvalidValue)
	_, err := ctx.NewEvent(cu.EventInterprocess) // wants no timing
	require.Error(t, err)
	e := newEvent(t, ctx, cu.EventBlockingSync|cu.EventDisableTiming)
	require.Same(t, ctx, e.Context())
	require.NotZero(t, e.Handle())
	require.Equal(t, sys.CUDA_SUCCESS, ctx.Caller().CuEventQuery(e.Handle()))
}
