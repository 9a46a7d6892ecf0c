package counter

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/vmm"
)

// contexts are a context whose reference a test closes, of either kind, beside ctx.
var contexts = map[string]func(ctx *cu.Context) (*cu.Context, error){
	"primary": func(ctx *cu.Context) (*cu.Context, error) { return ctx.Device().PrimaryContext() },
	"created": func(ctx *cu.Context) (*cu.Context, error) { return ctx.Device().NewContext(cu.SchedAuto) },
}

// FAULTS 79: queued work of a stream that is held up keeps the counter's memory, whoever
// would close that, and though the reference to the context that the stream and the counter were
// made in has been closed. Close of the counter waits for a stream that is about to get there.
// When it has gone on, all can be closed, and the context is well.
func TestFault79_QueuedWorkKeepsItsMemory(t *testing.T) {
	retained := func(ctx *cu.Context) (*cu.Context, error) { return ctx.Retain() }
	signals := func(_ *testing.T, c *Counter, s *cu.Stream) error { return errors.Join(c.Signal(s, 1), c.Signal(s, 2)) }
	for name, x := range map[string]struct {
		open  func(*cu.Context) (*cu.Context, error) // closed when the work is queued
		queue func(*testing.T, *Counter, *cu.Stream) error
	}{
		"primary context": {contexts["primary"], signals},
		"created context": {contexts["created"], signals},
		"closed stream": {retained, func(t *testing.T, c *Counter, s *cu.Stream) error {
			return errors.Join(signals(t, c, s), s.Close())
		}},
		"signal and wait": {retained, func(t *testing.T, c *Counter, s *cu.Stream) error {
			w, err := c.Wait(context.Background(), s, 1)
			t.Cleanup(func() { require.NoError(t, w.Result()) })
			return errors.Join(c.Signal(c.rescue, 1), err, c.rescue.Synchronize(context.Background()))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := cutest.Context(t, cutest.Device(t))
			gate, buf := newGate(t, ctx), control(t, ctx)
			own := ok(x.open(ctx))(t)
			s, c := newStream(t, own), newCounter(t, own, buf)
			gate.hold(t, s)
			require.NoError(t, x.queue(t, c, s))
			require.NoError(t, own.Close())
			for range 2 {
				err := c.Close()
				require.ErrorIs(t, err, vmm.ErrInUse)
				require.ErrorContains(t, err, "counter 0 at "+buf.Ptr().String())
				require.ErrorContains(t, err, "still queued in a stream;")
				err = buf.Close()
				require.ErrorIs(t, err, vmm.ErrInUse)
				require.ErrorContains(t, err, "counter 0 open")
			}
			require.ErrorIs(t, c.Signal(s, 3), cu.ErrClosed)
			c.limit = 30 * time.Second
			closed := make(chan error)
			go func() { closed <- c.Close() }()
			gate.open(t)
			require.NoError(t, <-closed)
			require.NoError(t, errors.Join(c.Close(), buf.Close()))
			requireWell(t, ctx)
		})
	}
}

// A counter drops the marks of streams that are done, and keeps that of a stream that still
// has work to do.
func TestCounterOfSeveralStreams(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	gate, buf := newGate(t, ctx), control(t, ctx)
	c := newCounter(t, ctx, buf)
	held := newStream(t, ctx)
	gate.hold(t, held)
	require.NoError(t, c.Signal(held, 1))
	for n := range uint64(3 * fewMarks) {
		s := ok(ctx.NewStream())(t)
		require.NoError(t, c.Signal(s, 2+n))
		require.NoError(t, s.Synchronize(soon(t)))
		require.NoError(t, s.Close())
		require.LessOrEqual(t, len(c.usage.marks), fewMarks)
	}
	require.ErrorContains(t, c.Close(), "the memory is in use: a signal or wait is still queued in a stream;")
	gate.open(t)
	c.limit = closeLimit
	require.NoError(t, errors.Join(c.Close(), buf.Close()))
}

// A counter that has given up a wait is kept by the stream that has not got to it yet. The stream
// is freed all the same, though its context was closed and the driver makes no more events.
func TestGivenUpWaitKeepsItsMemory(t *testing.T) {
	for name, open := range contexts {
		t.Run(name, func(t *testing.T) {
			faults, ctx := faulty(t)
			gate, buf := newGate(t, ctx), control(t, ctx)
			own := ok(open(ctx))(t)
			s, c := newStream(t, own), newCounter(t, own, buf)
			gate.hold(t, s)
			limited, cancel := context.WithCancel(t.Context())
			w := ok(c.Wait(limited, s, 1))(t)
			require.NoError(t, own.Close())
			full := faults.Fail("cuEventCreate", cu.ErrOutOfMemory)
			cancel()
			require.ErrorIs(t, c.Close(), vmm.ErrInUse)
			gate.open(t)
			require.ErrorIs(t, w.Result(), cu.ErrGivenUp)
			require.NotContains(t, w.Result().Error(), "waits still")
			require.ErrorIs(t, errOf(ctx.NewEvent(cu.EventDisableTiming)), cu.ErrOutOfMemory)
			full.Stop()
			c.limit = closeLimit
			require.NoError(t, errors.Join(c.Close(), buf.Close()))
			require.ErrorIs(t, c.Signal(s, 1), cu.ErrGivenUp)
			requireWell(t, ctx)
		})
	}
}

// A lateContext is told to end while it is looked at.
type lateContext struct {
	context.Context
	looks  int
	before func() // the end
}

func (c *lateContext) Err() error {
	if c.looks++; c.looks <= 2 {
		return nil // it has not ended yet when the wait begins
	}
	if c.looks == 3 {
		c.before()
	}
	return context.Canceled
}

// A wait that is met, and whose counter is closed, just as it is given up is not said to
// go on.
func TestCounterIsClosedWhileAWaitIsGivenUp(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s, other, buf := newStream(t, ctx), newStream(t, ctx), control(t, ctx)
	c := newCounter(t, ctx, buf)
	c.limit = 30 * time.Second
	signalled := false
	w := ok(c.Wait(&lateContext{Context: t.Context(), before: func() {
		signalled = c.Signal(other, 1) == nil && c.Close() == nil
	}}, s, 1))(t)
	require.ErrorIs(t, w.Result(), cu.ErrGivenUp)
	require.NotContains(t, w.Result().Error(), "waits still")
	require.True(t, signalled)
	require.NoError(t, buf.Close())
}

// A graph would signal at every launch, for ever: a counter takes no stream that is
// being captured, and does the capture no harm. Nor does it take one of a closed context, which
// makes no counter either.
func TestStreamsThatACounterDoesNotTake(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s, buf := newStream(t, ctx), control(t, ctx)
	own := ok(ctx.Retain())(t)
	closed := newStream(t, own)
	require.NoError(t, own.Close())
	require.ErrorIs(t, errOf(New(own, buf, 0)), cu.ErrClosed)
	c := newCounter(t, ctx, buf)
	require.ErrorIs(t, c.Signal(closed, 1), cu.ErrClosed)
	require.ErrorIs(t, errOf(c.Wait(soon(t), closed, 1)), cu.ErrClosed)
	g := ok(s.Capture(func() error {
		require.ErrorIs(t, c.Signal(s, 1), cu.ErrStreamCaptureUnsupported)
		require.ErrorIs(t, errOf(c.Wait(soon(t), s, 1)), cu.ErrStreamCaptureUnsupported)
		return nil
	}))(t)
	require.NoError(t, g.Close())
	require.NoError(t, c.Signal(s, 1))
	c.limit = closeLimit
	require.NoError(t, errors.Join(c.Close(), buf.Close()))
}

// A signal whose end cannot be marked is queued all the same. The memory stays until a
// later mark is reached, of a signal or of Close.
func TestCounterWithoutAMark(t *testing.T) {
	faults, ctx := faulty(t)
	s := newStream(t, ctx)
	buf := control(t, ctx)
	c := newCounter(t, ctx, buf)
	require.ErrorIs(t, during(faults, "cuEventCreate", func() error { return c.Signal(s, 1) }), cu.ErrOutOfMemory)
	unmarked := func(n uint64) {
		require.NoError(t, during(faults, "cuEventRecord", func() error { return c.Signal(s, n) }))
		require.NoError(t, s.Synchronize(soon(t)))
	}
	unmarked(1)
	require.NoError(t, c.Signal(s, 2))
	require.NoError(t, s.Synchronize(soon(t)))
	require.False(t, c.usage.marks[1].busy(), "the mark of the second signal is behind the first")
	unmarked(3)
	err := during(faults, "cuEventRecord", c.Close)
	require.ErrorIs(t, err, vmm.ErrInUse)
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
	require.ErrorContains(t, err, "the driver does not say whether they are done")
	c.limit = closeLimit
	require.NoError(t, errors.Join(c.Close(), buf.Close()))
}

// A counter that cannot be made lets go of its buffer and its context.
func TestCounterThatCannotBeMade(t *testing.T) {
	faults, ctx := faulty(t)
	buf := control(t, ctx)
	held := 0 // references to the context
	count := func(n int) sys.Hook {
		return func(_ sys.Call, next func() sys.CUresult) sys.CUresult { held += n; return next() }
	}
	faults.Hook("cuDevicePrimaryCtxRetain", count(1))
	faults.Hook("cuDevicePrimaryCtxRelease", count(-1))
	for _, symbol := range []string{"cuMemGetAccess", "cuStreamCreateWithPriority", "cuEventCreate"} {
		err := during(faults, symbol, func() error { _, err := New(ctx, buf, 0); return err })
		require.ErrorIs(t, err, cu.ErrOutOfMemory, symbol)
		require.Zero(t, held, symbol)
	}
	require.NoError(t, buf.Close())
}

// A counter that is closed while another signals waits for no later signal. Such a signal is
// refused, and does not reach memory that is gone.
func TestCounterIsClosedWhileOthersSignal(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s := newStream(t, ctx)
	for range 20 {
		buf := control(t, ctx)
		c := newCounter(t, ctx, buf)
		c.limit = 30 * time.Second
		begun, refused := make(chan error, 1), make(chan error)
		go func() {
			err := c.Signal(s, 1)
			begun <- err
			for n := uint64(2); err == nil; n++ {
				err = errors.Join(c.Signal(s, n), s.Synchronize(soon(t)))
			}
			refused <- err
		}()
		require.NoError(t, <-begun)
		require.NoError(t, errors.Join(c.Close(), buf.Close()))
		require.ErrorIs(t, <-refused, cu.ErrClosed)
	}
	requireWell(t, ctx)
}

// A stream of a lost context does no more work, so nothing keeps the memory.
func TestCounterOfALostContext(t *testing.T) {
	out, err := cutest.Child(soon(t), "loses a counter").CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// childLosesACounter loses its context while a signal is queued, and closes all.
func childLosesACounter() error {
	dev := testenv.Got(testenv.Got(cutest.Open()).Device(0))
	ctx := testenv.Got(dev.PrimaryContext())
	buf := testenv.Got(vmm.New(dev, Stride))
	ro := testenv.Got(buf.NewView(cu.ReadOnly))
	c, s, other := testenv.Got(New(ctx, buf, 0)), testenv.Got(ctx.NewStream()), testenv.Got(ctx.NewStream())
	bg := context.Background()
	testenv.Must(errors.Join(cu.Fill(ctx, buf.Ptr(), uint8(0), 16), ctx.Synchronize(bg),
		s.WaitValue32(buf.Ptr().Add(8), 1, cu.WaitGEQ), c.Signal(s, 1), other.WriteValue32(ro.Ptr(), 0xbad, cu.WriteDefault)))
	for _, err := range []error{s.Synchronize(bg), c.Signal(s, 2)} {
		if !errors.Is(err, cu.ErrContextLost) {
			return fmt.Errorf("the context is not lost: %w", err)
		}
	}
	return errors.Join(c.Close(), buf.Close(), ro.Close(), ctx.Close())
}
