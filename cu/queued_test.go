package cu_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// impatient is a context of a driver whose Close of memory waits for a moment only.
func impatient(t testing.TB) (*cu.Device, *cu.Context) {
	t.Helper()
	_, dev, ctx := driverContext(t, cu.WithCloseLimit(20*time.Millisecond))
	return dev, ctx
}

// memories are all kinds of memory that Close waits for.
func memories(t *testing.T, ctx *cu.Context) map[string]interface{ Close() error } {
	t.Helper()
	return map[string]interface{ Close() error }{
		"Memory":           untilEnd(t, ok(ctx.Alloc(4096))(t)),
		"PitchedMemory":    untilEnd(t, ok(ctx.AllocPitch(64, 4, 4))(t)),
		"HostMemory":       untilEnd(t, ok(ctx.AllocHost(4096, 0))(t)),
		"HostRegistration": untilEnd(t, ok(ctx.RegisterHost(make([]byte, 4096), 0))(t)),
	}
}

// Close of memory waits for what was queued before it, says so when it has waited in vain, and can be called again.
func TestCloseOfMemoryWaitsForQueuedWork(t *testing.T) {
	_, ctx := impatient(t)
	s := newStream(t, ctx)
	all := memories(t, ctx)
	release := hold(t, s)
	for name, m := range all {
		err := m.Close()
		require.ErrorIs(t, err, cu.ErrInUse, name)
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
	}
	m := all["Memory"].(*cu.Memory)
	require.NotZero(t, m.Ptr())
	require.NoError(t, cu.FillAsync(s, m.Ptr(), uint8(7), m.Size()))
	release()
	require.NoError(t, s.Synchronize(soon(t)))
	require.Equal(t, []byte{7, 7}, readBack[byte](t, ctx, m.Ptr(), 2))
	for name, m := range all {
		require.NoError(t, m.Close(), name)
		require.NoError(t, m.Close(), name)
	}
	require.Zero(t, m.Ptr())
}

// Memory of a pool waits for its stream's work, also when that is closed.
func TestCloseOfStreamMemoryOfAClosedStream(t *testing.T) {
	_, ctx := impatient(t)
	s := newStream(t, ctx)
	m := untilEnd(t, ok(s.AllocAsync(4096))(t))
	release := hold(t, s)
	require.NoError(t, s.Close())
	require.ErrorIs(t, m.Close(), cu.ErrInUse)
	require.NotZero(t, m.Ptr())
	release()
	require.NoError(t, ctx.Device().Driver().WaitQueued(soon(t)))
	require.NoError(t, m.Close())
}

// Close that waits goes on when the work is done, whoever does it.
func TestCloseOfMemoryGoesOn(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s := newStream(t, ctx)
	m := ok(ctx.Alloc(4096))(t)
	release := hold(t, s)
	closed := make(chan error, 1)
	go func() { closed <- m.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("Close did not wait: %v", err)
	case <-time.After(20 * time.Millisecond): // there is no telling but to wait
	}
	release()
	require.NoError(t, <-closed)
}

// Work of every kind of stream counts: of other contexts, of other references to a context, of the null stream, of
// blocking streams, and of streams and references that were closed.
func TestQueuedWorkOfEveryStream(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T, dev *cu.Device, ctx *cu.Context) (release func()){
		"of another reference": func(t *testing.T, dev *cu.Device, _ *cu.Context) func() {
			return hold(t, newStream(t, untilEnd(t, ok(dev.PrimaryContext())(t))))
		},
		"of another context": func(t *testing.T, dev *cu.Device, _ *cu.Context) func() {
			return hold(t, newStream(t, untilEnd(t, ok(dev.NewContext(0))(t))))
		},
		"blocking": func(t *testing.T, _ *cu.Device, ctx *cu.Context) func() {
			return hold(t, untilEnd(t, ok(ctx.NewStreamWith(cu.StreamOptions{Blocking: true}))(t)))
		},
		"null": func(t *testing.T, _ *cu.Device, ctx *cu.Context) func() {
			return hold(t, ctx.NullStream())
		},
		"closed": func(t *testing.T, _ *cu.Device, ctx *cu.Context) func() {
			s := newStream(t, ctx)
			release := hold(t, s)
			require.NoError(t, s.Close())
			return release
		},
		"of a closed reference": func(t *testing.T, dev *cu.Device, ctx *cu.Context) func() {
			other := ok(dev.PrimaryContext())(t)
			s := newStream(t, other)
			word, helper := newWords(t, ctx, 1), newStream(t, ctx)
			require.NoError(t, s.WaitValue32(word, 1, cu.WaitGEQ))
			require.NoError(t, other.Close())
			return func() { require.NoError(t, helper.WriteValue32(word, 1, cu.WriteDefault)) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			dev, ctx := impatient(t)
			m := untilEnd(t, ok(ctx.Alloc(4096))(t))
			release := begin(t, dev, ctx)
			require.ErrorIs(t, m.Close(), cu.ErrInUse)
			release()
			require.NoError(t, dev.Driver().WaitQueued(soon(t)))
			require.NoError(t, m.Close())
		})
	}
}

// Later work does not matter, so that Close ends while others go on working.
func TestWaitQueuedDoesNotWaitForLaterWork(t *testing.T) {
	drv, _, ctx := driverContext(t)
	s := newStream(t, ctx)
	first := hold(t, s)
	var asked atomic.Bool
	waited := make(chan error, 1)
	go func() { waited <- drv.WaitQueued(askedContext{soon(t), &asked}) }()
	require.Eventually(t, asked.Load, 30*time.Second, time.Millisecond)
	defer hold(t, s)()
	first()
	require.NoError(t, <-waited)
}

// askedContext tells that WaitQueued polls: it asks for the end of its context again.
type askedContext struct {
	context.Context
	asked *atomic.Bool
}

func (c askedContext) Done() <-chan struct{} { c.asked.Store(true); return c.Context.Done() }

// While a stream is captured nobody can know what it has to do, and to ask would spoil the capture.
func TestCloseOfMemoryDuringACapture(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	all := memories(t, d.ctx)
	g, err := d.a.Capture(func() error {
		for name, m := range all {
			err := m.Close()
			require.ErrorIs(t, err, cu.ErrInUse, name)
			require.ErrorIs(t, err, cu.ErrStreamCaptureUnsupported, name)
			require.Contains(t, err.Error(), "captured", name)
		}
		return d.fill(d.a, 0, 7)
	})
	require.NoError(t, err)
	for name, m := range all {
		require.NoError(t, m.Close(), name)
	}
	exec := ok(g.Instantiate(0))(t)
	require.NoError(t, exec.Launch(d.a))
	require.Equal(t, []byte{7}, d.read(t, 1))
	require.NoError(t, errors.Join(exec.Close(), g.Close()))
}

// A capture that begins, or takes a stream in by an event, while Close asks is not harmed.
func TestCapturesBesideWaitQueued(t *testing.T) {
	drv, dev, _ := driverContext(t)
	d := newDrawing(t, dev)
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			if err := drv.WaitQueued(context.Background()); err != nil && !errors.Is(err, cu.ErrStreamCaptureUnsupported) {
				stopped <- err
				return
			}
		}
	}()
	fork := newEvent(t, d.ctx, cu.EventDisableTiming)
	for range 200 {
		g, err := d.a.Capture(func() error {
			return errors.Join(d.fill(d.a, 0, 7), fork.Record(d.a), d.b.WaitEvent(fork), d.fill(d.b, 1, 8), fork.Record(d.b), d.a.WaitEvent(fork))
		})
		require.NoError(t, err)
		require.NoError(t, g.Close())
	}
	close(stop)
	require.NoError(t, <-stopped)
}

// Without a time to wait, memory that has no work is closed all the same, and other memory is in use.
func TestCloseOfMemoryWithoutALimit(t *testing.T) {
	_, _, ctx := driverContext(t, cu.WithCloseLimit(0))
	all := memories(t, ctx)
	s, held := newStream(t, ctx), make(chan struct{})
	require.NoError(t, s.Call(func() { <-held }))
	for name, m := range all {
		assert.ErrorIs(t, m.Close(), cu.ErrInUse, name)
	}
	close(held)
	require.NoError(t, s.Synchronize(soon(t)))
	for name, m := range all { // what asked before may still be about to mark the stream
		require.Eventually(t, func() bool { return m.Close() == nil }, 30*time.Second, time.Millisecond, name)
	}
}

// The driver's refusal to say is no end of the work: Close reports it, and keeps the memory.
func TestCloseOfMemoryWithoutAnAnswer(t *testing.T) {
	s, _, _, ctx := spiedContext(t)
	m := untilEnd(t, ok(ctx.Alloc(64))(t))
	newStream(t, ctx)
	broken := s.Fail("cuStreamQuery", cu.ErrUnknown)
	require.ErrorIs(t, m.Close(), cu.ErrUnknown)
	require.NotZero(t, m.Ptr())
	broken.Stop()
	require.NoError(t, m.Close())
}

// Events of work that was waited for, in vain or not, are destroyed.
func TestWaitQueuedLeavesNoEvents(t *testing.T) {
	s, drv, _, ctx := spiedContext(t)
	a, b := newStream(t, ctx), newStream(t, ctx)
	release := hold(t, a)
	gone, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, drv.WaitQueued(gone), context.DeadlineExceeded)
	releaseB := hold(t, b)
	require.NoError(t, b.Close()) // which leaves a tail
	release()
	releaseB()
	require.NoError(t, drv.WaitQueued(soon(t)))
	require.Eventually(t, func() bool { return s.count("cuEventCreate") == s.count("cuEventDestroy_v2") }, 30*time.Second, time.Millisecond)
	require.NotZero(t, s.count("cuEventCreate"))
	require.ErrorIs(t, drv.WaitQueued(gone), context.DeadlineExceeded)
}
