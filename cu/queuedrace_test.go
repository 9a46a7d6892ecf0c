package cu_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// A stream that is full keeps the call that marks the end of its work. Close gives up in time all the same, and holds
// up no other stream.
func TestCloseBesideAFullStream(t *testing.T) {
	for name, o := range map[string]cu.StreamOptions{"not blocking": {}, "blocking": {Blocking: true}} {
		t.Run(name, func(t *testing.T) {
			var full atomic.Uint64
			room := make(chan struct{})
			_, _, ctx := driverContext(t, cu.WithCloseLimit(50*time.Millisecond), cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
				if call.Symbol() == "cuEventRecord" && full.Load() != 0 && uint64(call.Arg(1)) == full.Load() {
					<-room
				}
				return next()
			}))
			s, other := untilEnd(t, ok(ctx.NewStreamWith(o))(t)), untilEnd(t, ok(ctx.NewStreamWith(o))(t))
			e := newEvent(t, ctx, cu.EventDisableTiming)
			require.NoError(t, e.Record(other))
			m := untilEnd(t, ok(ctx.Alloc(64))(t))
			release := hold(t, s)
			full.Store(uint64(s.Handle()))
			require.ErrorIs(t, m.Close(), cu.ErrInUse)
			require.NoError(t, other.WaitEvent(e))
			g, err := other.Capture(func() error { return cu.FillAsync(other, m, uint8(1), 1) })
			require.NoError(t, err)
			require.NoError(t, g.Close())
			require.ErrorIs(t, m.Close(), cu.ErrInUse, "again, beside the call that is kept")
			close(room)
			release()
			require.NoError(t, s.Synchronize(soon(t)))
			require.NoError(t, m.Close())
		})
	}
}

// A capture of a blocking stream that begins while Close asks about the null stream is a capture, too, and not harmed.
func TestCloseWhileABlockingStreamIsCaptured(t *testing.T) {
	var armed atomic.Bool
	asked, begun := make(chan struct{}), make(chan struct{})
	_, _, ctx := driverContext(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		r := next()
		if call.Symbol() == "cuStreamQuery" && call.Arg(0) == 0 && armed.CompareAndSwap(true, false) {
			close(asked)
		}
		return r
	}))
	s := untilEnd(t, ok(ctx.NewStreamWith(cu.StreamOptions{Blocking: true}))(t))
	m := untilEnd(t, ok(ctx.Alloc(64))(t))
	release := hold(t, ctx.NullStream())
	armed.Store(true)
	closed := make(chan error, 1)
	go func() { closed <- m.Close() }()
	<-asked
	g, err := s.Capture(func() error {
		close(begun)
		err := <-closed
		if !errors.Is(err, cu.ErrInUse) {
			return fmt.Errorf("closed: %w", err)
		}
		return cu.FillAsync(s, m, uint8(1), 1)
	})
	require.NoError(t, err)
	require.NoError(t, g.Close())
	<-begun
	release()
	require.NoError(t, ctx.NullStream().Synchronize(soon(t)))
	require.NoError(t, m.Close())
}

// A copy that a capture has taken in, which has ended since, does not count as done.
func TestCopyThatWasCaptured(t *testing.T) {
	var s *cu.Stream
	var g *cu.Graph
	_, _, ctx := driverContext(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) (r sys.CUresult) {
		if call.Symbol() != "cuMemcpyDtoHAsync_v2" || s == nil {
			return next()
		}
		g, _ = s.Capture(func() error { r = next(); return nil })
		return r
	}))
	m := untilEnd(t, ok(ctx.Alloc(4))(t))
	stream := newStream(t, ctx)
	word := []uint32{7}
	s = stream
	err := cu.CopyToHost(stream, word, m)
	s = nil
	require.ErrorIs(t, err, cu.ErrStreamCaptureUnsupported)
	require.ErrorContains(t, err, "is in the graph")
	require.NoError(t, g.Close())
}

// The work of a stream that is closed while another asks for it is not overlooked.
func TestQueuedWorkOfAStreamBeingClosed(t *testing.T) {
	var other map[sys.CUstream]*cu.Stream
	var armed atomic.Bool
	closed := make(chan *cu.Stream, 1)
	drv, dev, ctx := driverContext(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		if s := other[sys.CUstream(call.Arg(0))]; s != nil && call.Symbol() == "cuStreamQuery" && armed.CompareAndSwap(true, false) {
			if err := s.Close(); err != nil { // before WaitQueued comes to it
				t.Error(err)
			}
			closed <- s
		}
		return next()
	}))
	a, b := newStream(t, ctx), newStream(t, untilEnd(t, ok(dev.PrimaryContext())(t)))
	release := map[*cu.Stream]func(){a: hold(t, a), b: hold(t, b)}
	other = map[sys.CUstream]*cu.Stream{a.Handle(): b, b.Handle(): a}
	armed.Store(true)
	asking, stop := context.WithCancel(context.Background())
	defer stop()
	waited := make(chan error, 1)
	go func() { waited <- drv.WaitQueued(asking) }()
	var gone *cu.Stream
	select {
	case gone = <-closed:
	case <-soon(t).Done():
		require.FailNow(t, "WaitQueued has asked no stream")
	}
	open := other[gone.Handle()]
	release[open]()
	require.NoError(t, open.Synchronize(soon(t)))
	select {
	case err := <-waited:
		require.FailNow(t, "it overlooks the closed stream's work", err)
	case <-time.After(50 * time.Millisecond): // in which a WaitQueued that overlooks the work returns
	}
	stop()
	require.ErrorIs(t, <-waited, context.Canceled, "the closed stream's work")
	release[gone]()
	require.NoError(t, drv.WaitQueued(soon(t)))
}

// Those that ask for work do not keep the contexts open that others wait to see closed.
func TestContextsAreClosedWhileOthersAsk(t *testing.T) {
	dev := cutest.Device(t)
	drv := dev.Driver()
	var asking sync.WaitGroup
	stop := make(chan struct{})
	for range 8 {
		asking.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := drv.WaitQueued(soon(t)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 100 {
		const many = 20
		errs := make(chan error, many)
		for range many {
			c := ok(dev.PrimaryContext())(t)
			go func() { errs <- c.Close() }()
		}
		for range many {
			require.NoError(t, <-errs)
		}
	}
	close(stop)
	asking.Wait()
}

// No driver has no work to wait for, and says so.
func TestWaitQueuedOfNothing(t *testing.T) {
	var none *cu.Driver
	require.ErrorIs(t, none.WaitQueued(soon(t)), cu.ErrClosed)
	require.ErrorIs(t, none.WaitToClose(soon(t), "x"), cu.ErrClosed)
}

// The error of Close says which memory, why, and what to do.
func TestErrorsOfMemoryInUse(t *testing.T) {
	s, _, _, ctx := spiedContext(t, cu.WithCloseLimit(10*time.Millisecond))
	m := untilEnd(t, ok(ctx.Alloc(64))(t))
	busy := newStream(t, ctx)
	release := hold(t, busy)
	require.Regexp(t, `^cu: device memory of 64 bytes at 0x[0-9a-f]+ is not closed: after \d+ms, streams still have work from before: synchronise them, or free one that waits, and close it again$`, m.Close().Error())
	release()
	require.NoError(t, busy.Synchronize(soon(t)))
	g, err := busy.Capture(func() error {
		require.Regexp(t, `^cu: device memory of 64 bytes at 0x[0-9a-f]+ is not closed, because a stream is being captured, and may use it: close it when the capture has ended$`, m.Close().Error())
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, g.Close())
	broken := s.Fail("cuStreamQuery", cu.ErrUnknown)
	err = m.Close()
	require.ErrorIs(t, err, cu.ErrUnknown)
	require.NotErrorIs(t, err, cu.ErrInUse)
	broken.Stop()
}
