package cu_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

func TestStreamFinishesItsWork(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	stream := ok(ctx.NewStream())(t)
	mem := ok(ctx.Alloc(1 << 20))(t)
	for i, wait := range []context.Context{context.Background(), soon(t)} {
		v := uint32(0xabcd0000 + i)
		require.NoError(t, cu.FillAsync(stream, mem.Ptr(), v, mem.Size()/4))
		require.NoError(t, stream.Synchronize(wait))
		require.True(t, ok(stream.Query())(t))
		got := make([]uint32, mem.Size()/4)
		require.NoError(t, cu.CopyToHost(ctx, got, mem.Ptr()))
		require.Equal(t, []uint32{v, v, v}, []uint32{got[0], got[len(got)/2], got[len(got)-1]})
	}
	require.NoError(t, mem.Close())
	require.NoError(t, stream.Close())
}

// Close tells who asked for it while the stream still takes work, and once.
func TestStreamOnClose(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	mem := ok(ctx.Alloc(8))(t)
	defer mem.Close()
	stream := newStream(t, ctx)
	var told []string
	tell := func(what string) func() {
		return func() {
			told = append(told, what)
			require.NoError(t, cu.FillAsync(stream, mem.Ptr(), uint8(7), 8))
		}
	}
	stream.OnClose("a", tell("not the last"))
	stream.OnClose("a", tell("a"))
	stream.OnClose("b", tell("b"))
	stream.OnClose("b", nil)
	require.True(t, stream.OnClose("c", func() { require.False(t, stream.OnClose("d", tell("d")), "Close has begun") }))
	require.NoError(t, stream.Close())
	require.NoError(t, stream.Close())
	require.Equal(t, []string{"a"}, told)
	require.False(t, stream.OnClose("a", tell("a")))
	require.NoError(t, ctx.NullStream().Close())
	require.True(t, ctx.NullStream().OnClose("a", func() {}), "the null stream's Close does nothing")
	require.ErrorIs(t, cu.FillAsync(stream, mem.Ptr(), uint8(7), 8), cu.ErrClosed)
}

// Every function of OnClose is called while the stream takes work, even if another goroutine closes
// the stream meanwhile. No function waits for another.
func TestStreamIsClosedBehindOnClose(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	mem := ok(ctx.Alloc(8))(t)
	defer mem.Close()
	stream := ok(ctx.NewStream())(t)
	a, b, closed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	filled := errors.New("not called")
	stream.OnClose("a", func() {
		close(a)
		<-b
		if err := stream.Close(); err != nil { // another Close, which does not wait
			filled = err
			return
		}
		filled = cu.FillAsync(stream, mem.Ptr(), uint8(7), 8)
	})
	stream.OnClose("b", func() {
		close(b)
		<-a
	})
	go func() { closed <- stream.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.FailNow(t, "one waits for the other")
	}
	require.NoError(t, filled)
}

// A stream that has ended with its context takes no work, so nobody is called.
func TestStreamOnCloseBehindItsContext(t *testing.T) {
	ctx := ok(cutest.Device(t).PrimaryContext())(t)
	stream := ok(ctx.NewStream())(t)
	called := false
	require.True(t, stream.OnClose("a", func() { called = true }))
	require.NoError(t, ctx.Close())
	require.NoError(t, stream.Close())
	require.False(t, called)
}

// FAULTS 18, 64: a wait for work that never ends is given up, without a thread
// left behind in the driver.
func TestFault18and64_WaitIsGivenUp(t *testing.T) {
	s, _, _, ctx := spiedContext(t)
	stream := newStream(t, ctx)
	s.Fail("cuStreamQuery", cu.ErrNotReady)
	require.False(t, ok(stream.Query())(t))

	limited, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, stream.Synchronize(limited), context.DeadlineExceeded)

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, stream.Synchronize(gone), context.Canceled)

	why := errors.New("why")
	told, tell := context.WithCancelCause(t.Context())
	var asked atomic.Int32
	s.Hook("cuStreamQuery", func(sys.Call, func() sys.CUresult) sys.CUresult {
		if asked.Add(1) == 200 { // it asks so often; this is in the middle of the pauses
			tell(why)
		}
		return sys.CUDA_ERROR_NOT_READY
	})
	require.ErrorIs(t, stream.Synchronize(told), why)
	require.Zero(t, s.count("cuStreamSynchronize"))
}

func TestWaitEndsWithWorkOrItsFailure(t *testing.T) {
	s, _, _, ctx := spiedContext(t)
	stream := newStream(t, ctx)
	n := 0
	s.Hook("cuStreamQuery", func(_ sys.Call, next func() sys.CUresult) sys.CUresult {
		if n++; n < 100 {
			return sys.CUDA_ERROR_NOT_READY
		}
		return next()
	})
	require.NoError(t, stream.Synchronize(soon(t)))
	require.Equal(t, 100, n)

	// Without an end to the context, the driver waits.
	require.NoError(t, stream.Synchronize(context.Background()))
	require.Equal(t, 1, s.count("cuStreamSynchronize"))

	s.Fail("cuStreamQuery", cu.ErrLaunchFailed)
	err := stream.Synchronize(soon(t))
	require.ErrorIs(t, err, cu.ErrLaunchFailed)
	require.ErrorContains(t, err, "cuStreamQuery: ")
	require.ErrorContains(t, err, "restart the process")
	done, err := stream.Query()
	require.ErrorIs(t, err, cu.ErrLaunchFailed)
	require.False(t, done)
}

// Objects of one context work in its streams and in no other's.
func TestStreamOfAnotherContextIsRefused(t *testing.T) {
	s, drv, _ := spied(t)
	a, b := cutest.TwoDevices(t, drv)
	ctx, other := cutest.Context(t, a), cutest.Context(t, b)
	event := ok(ctx.NewEvent(cu.EventDisableTiming))(t)
	memory := ok(ctx.NullStream().AllocAsync(4096))(t)
	before := s.calls()
	for name, call := range map[string]func(*cu.Stream) error{"Event.Record": event.Record, "StreamMemory.FreeAsync": memory.FreeAsync} {
		err := call(other.NullStream())
		require.ErrorIs(t, err, cu.ErrInvalidHandle, name)
		require.ErrorContains(t, err, "another context", name)
	}
	require.Equal(t, before, s.calls())
	require.NoError(t, errors.Join(memory.Close(), event.Close()))
}

// Two Contexts of one primary context are one to the driver.
func TestStreamServesEveryContextOfItsDevice(t *testing.T) {
	dev := cutest.Device(t)
	a, b := cutest.Context(t, dev), cutest.Context(t, dev)
	stream, mem := newStream(t, a), alloc(t, b, 4096)
	require.NoError(t, cu.FillAsync(stream, mem.Ptr(), uint8(7), mem.Size()))
	got := make([]byte, 4096)
	require.NoError(t, errors.Join(cu.CopyToHostAsync(stream, got, mem.Ptr()), stream.Synchronize(t.Context())))
	require.EqualValues(t, 7, got[4095])
}

// Invariant 1: any goroutine, any time, no locked thread.
func TestContextAndStreamFromManyGoroutines(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	const workers, size = 8, 1024
	stream, mem := newStream(t, ctx), alloc(t, ctx, workers*size)
	errs := make(chan error, workers)
	for w := range workers {
		go func() {
			errs <- func() error {
				p := mem.Ptr().Add(uint64(w * size))
				want, got := make([]byte, size), make([]byte, size)
				for round := range 20 {
					for i := range want {
						want[i] = byte(w*31 + round + i)
					}
					if err := errors.Join(cu.CopyToDeviceAsync(stream, p, want), cu.CopyToHostAsync(stream, got, p), stream.Synchronize(t.Context())); err != nil {
						return err
					}
					if string(got) != string(want) {
						return errors.New("read something else than was written")
					}
				}
				return nil
			}()
		}()
	}
	for range workers {
		require.NoError(t, <-errs)
	}
}

// A stream reports the options it was made with.
func TestStreamOptions(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	least, greatest, err := ctx.StreamPriorityRange()
	require.NoError(t, err)
	require.Less(t, greatest, least)
	var ids []uint64
	for _, c := range []struct {
		o    cu.StreamOptions
		want int
	}{
		{cu.StreamOptions{}, 0},
		{cu.StreamOptions{Priority: greatest, Blocking: true}, greatest},
		{cu.StreamOptions{Priority: -1 << 40}, greatest},
		{cu.StreamOptions{Priority: 1 << 40, Blocking: true}, least},
	} {
		s := ok(ctx.NewStreamWith(c.o))(t)
		require.EqualValues(t, c.want, ok(s.Priority())(t), "%+v", c.o)
		require.Equal(t, c.o.Blocking, ok(s.Blocking())(t))
		id, err := s.ID()
		if !orTooOld(t, ctx.Device().Driver(), "cuStreamGetId", err) {
			require.NotContains(t, ids, id, "another stream had it")
		}
		ids = append(ids, id)
		require.NotZero(t, s.Handle())
		require.Equal(t, sys.CUDA_SUCCESS, ctx.Caller().CuStreamQuery(s.Handle()))
		require.NoError(t, s.Close())
	}
	require.Zero(t, ctx.NullStream().Handle())
	require.False(t, ok(newStream(t, ctx).Blocking())(t))
}

// The null stream and a blocking stream wait for each other; a non-blocking one waits for neither.
func TestBlockingStreams(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	a := ok(ctx.NewStreamWith(cu.StreamOptions{Blocking: true}))(t)
	b := ok(ctx.NewStreamWith(cu.StreamOptions{Blocking: true}))(t)
	p, free, e := newWords(t, ctx, 3), newStream(t, ctx), newEvent(t, ctx, cu.EventDefault)
	release := hold(t, a)
	require.NoError(t, cu.FillAsync(ctx.NullStream(), p, uint32(1), 1))
	require.NoError(t, e.Record(ctx.NullStream()))
	require.NoError(t, cu.FillAsync(b, p.Add(8), uint32(1), 1))
	require.NoError(t, cu.FillAsync(free, p.Add(16), uint32(1), 1))
	require.NoError(t, free.Synchronize(soon(t)))
	staysBusy(t, a, b, e)
	release()
	require.NoError(t, b.Synchronize(soon(t)))
	require.True(t, isDone(t, e))
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// The null stream is one value of its context, not the caller's to close; nil is no
// stream.
func TestNullStream(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	null := ctx.NullStream()
	require.Same(t, null, ctx.NullStream())
	require.NoError(t, errors.Join(null.Close(), null.Close()))
	require.True(t, ok(null.Query())(t))
	require.NoError(t, null.Synchronize(t.Context()))
	_, err := null.Capture(func() error { return nil })
	require.ErrorIs(t, err, cu.ErrStreamCaptureUnsupported)

	require.Nil(t, (*cu.Context)(nil).NullStream())
	for name, err := range map[string]error{
		"copy without a context": cu.CopyToDevice(nil, cu.DevicePtr(0), []byte{1}),
		"copy without a stream":  cu.CopyToDeviceAsync(nil, cu.DevicePtr(0), []byte{1}),
		"copy between contexts":  cu.CopyPeerAsync(nil, cu.DevicePtr(0), ctx, cu.DevicePtr(0), ctx, 1),
		"box between contexts":   cu.Copy3DAsync(nil, cu.Side{Context: ctx}, cu.Side{}, 0, 0, 0),
		"close":                  (*cu.Stream)(nil).Synchronize(t.Context()),
	} {
		require.ErrorIs(t, err, cu.ErrClosed, name)
	}
	require.NoError(t, (*cu.Stream)(nil).Close())
}
