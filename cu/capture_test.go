package cu_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// drawing is a context with two streams and some memory of zeros.
type drawing struct {
	ctx  *cu.Context
	a, b *cu.Stream
	mem  cu.DevicePtr
	size uint64
}

func newDrawing(t testing.TB, dev *cu.Device) *drawing {
	t.Helper()
	d := &drawing{ctx: cutest.Context(t, dev), size: 4096}
	d.a, d.b, d.mem = newStream(t, d.ctx), newStream(t, d.ctx), alloc(t, d.ctx, d.size).Ptr()
	require.NoError(t, cu.FillAsync(d.a, d.mem, uint8(0), d.size))
	require.NoError(t, d.a.Synchronize(soon(t)))
	return d
}

// at is an address in the drawing's memory.
func (d *drawing) at(n uint64) cu.DevicePtr { return d.mem.Add(n) }

// event makes an event.
func (d *drawing) event(t testing.TB) *cu.Event {
	t.Helper()
	return newEvent(t, d.ctx, cu.EventDisableTiming)
}

// read waits for stream a and returns the memory's first bytes.
func (d *drawing) read(t testing.TB, n int) []byte {
	t.Helper()
	got := make([]byte, n)
	require.NoError(t, errors.Join(cu.CopyToHostAsync(d.a, got, d.mem), d.a.Synchronize(context.Background())))
	return got
}

// fill sets one byte at n.
func (d *drawing) fill(s *cu.Stream, n uint64, v uint8) error {
	return cu.FillAsync(s, d.at(n), v, 1)
}

// copy copies one byte.
func (d *drawing) copy(s *cu.Stream, to, from uint64) error {
	return cu.CopyAsync(s, d.at(to), d.at(from), 1)
}

// captured is the graph of what record gives to stream a.
func (d *drawing) captured(t testing.TB, record func() error) *cu.Graph {
	t.Helper()
	return untilEnd(t, ok(d.a.Capture(record))(t))
}

// executable makes g executable.
func executable(t testing.TB, g *cu.Graph) *cu.GraphExec {
	t.Helper()
	return untilEnd(t, ok(g.Instantiate(0))(t))
}

// status is how a stream is captured.
func status(t testing.TB, s *cu.Stream) cu.CaptureStatus {
	t.Helper()
	return ok(s.CaptureStatus())(t)
}

// types counts a graph's nodes by type.
func types(t testing.TB, g *cu.Graph) map[cu.GraphNodeType]int {
	t.Helper()
	nodes := ok(g.Nodes())(t)
	n := ok(g.NodeCount())(t)
	require.Len(t, nodes, n)
	counts := map[cu.GraphNodeType]int{}
	for _, n := range nodes {
		typ := ok(n.Type())(t)
		counts[typ]++
	}
	return counts
}

func TestCaptureRecordsAndDoesNothing(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	g := d.captured(t, func() error {
		require.Equal(t, cu.CaptureActive, status(t, d.a))
		return errors.Join(d.fill(d.a, 0, 5), d.copy(d.a, 1, 0))
	})
	require.Equal(t, cu.CaptureNone, status(t, d.a))
	require.Equal(t, map[cu.GraphNodeType]int{cu.NodeFill: 1, cu.NodeCopy: 1}, types(t, g))
	require.Equal(t, []byte{0, 0}, d.read(t, 2))

	exec := executable(t, g)
	require.NoError(t, g.Close(), "the executable does without")
	require.NoError(t, exec.Upload(d.a))
	for v := range uint8(3) {
		require.NoError(t, d.fill(d.a, 0, 100+v))
		require.NoError(t, exec.Launch(d.a))
		require.Equal(t, []byte{5, 5}, d.read(t, 2))
	}
	require.NoError(t, exec.Launch(exec.Context().NullStream()))
	require.NoError(t, d.ctx.Synchronize(soon(t)))
	require.NoError(t, exec.Close())
}

// Host memory is read at every launch, not when it is captured.
func TestLaunchReadsHostMemoryAnew(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	src, dst := []byte{1, 2, 3}, make([]byte, 3)
	exec := executable(t, d.captured(t, func() error {
		return errors.Join(cu.CopyToDeviceAsync(d.a, d.mem, src), cu.CopyToHostAsync(d.a, dst, d.mem))
	}))
	for v := range byte(4) {
		src[1] = 10 * v
		require.NoError(t, exec.Launch(d.a))
		require.NoError(t, d.a.Synchronize(soon(t)))
		require.Equal(t, []byte{1, 10 * v, 3}, dst)
	}
	runtime.KeepAlive(src)
}

// Streams join a capture, and are joined, through events.
func TestCaptureOfTwoStreams(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	fork, join := d.event(t), d.event(t)
	g := d.captured(t, func() error {
		err := errors.Join(d.fill(d.a, 0, 7), fork.Record(d.a), d.b.WaitEvent(fork))
		require.Equal(t, cu.CaptureActive, status(t, d.b))
		return errors.Join(err, d.copy(d.b, 1, 0), join.Record(d.b), d.copy(d.a, 2, 0), d.a.WaitEvent(join), d.copy(d.a, 3, 1))
	})
	require.Equal(t, cu.CaptureNone, status(t, d.b))
	require.Equal(t, map[cu.GraphNodeType]int{cu.NodeFill: 1, cu.NodeCopy: 3}, types(t, g))
	exec := executable(t, g)
	for range 10 {
		require.NoError(t, cu.FillAsync(d.a, d.mem, uint8(0), 4))
		require.NoError(t, exec.Launch(d.a))
		require.Equal(t, []byte{7, 7, 7, 7}, d.read(t, 4))
	}
	// The events never happen.
	require.ErrorIs(t, errOf(join.Query()), cu.ErrInvalidValue)
	require.NoError(t, join.Record(d.b))
	require.NoError(t, join.Synchronize(soon(t)))
}

// To ask for an event that was recorded in a capture spoils that.
func TestCapturedEventIsNotWaitedFor(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	e := d.event(t)
	for name, wait := range map[string]func() error{
		"Query":                     func() error { _, err := e.Query(); return err },
		"Synchronize":               func() error { return e.Synchronize(soon(t)) },
		"Synchronize in the driver": func() error { return e.Synchronize(noEnd{t.Context()}) },
	} {
		_, err := d.a.Capture(func() error {
			require.NoError(t, errors.Join(d.fill(d.a, 0, 1), e.Record(d.a)))
			err := wait()
			require.ErrorIs(t, err, cu.ErrCapturedEvent, name)
			require.ErrorContains(t, err, "recorded in a capture", name)
			return nil
		})
		require.ErrorIs(t, err, cu.ErrStreamCaptureInvalidated, name)
	}
}

// Invariant 4.
func TestFailedCaptureLeavesTheStreamAsItWas(t *testing.T) {
	s, _, dev := spied(t)
	d := newDrawing(t, dev)
	why := errors.New("why")
	fork := d.event(t)
	for name, c := range map[string]struct {
		record func() error
		want   error
	}{
		"fails": {func() error { return errors.Join(d.fill(d.a, 0, 1), why) }, why},
		"fails with another stream in it": {func() error {
			return errors.Join(fork.Record(d.a), d.b.WaitEvent(fork), d.fill(d.b, 0, 1), why)
		}, why},
		"nested": {func() error {
			_, err := d.a.Capture(func() error { t.Error("called"); return nil })
			return err
		}, cu.ErrIllegalState},
		"spoilt and ignored": {func() error {
			require.ErrorIs(t, d.waitForOutside(t), cu.ErrStreamCaptureIsolation)
			require.Equal(t, cu.CaptureInvalidated, status(t, d.a))
			return nil
		}, cu.ErrStreamCaptureInvalidated},
		"not joined": {func() error {
			return errors.Join(d.fill(d.a, 0, 1), fork.Record(d.a), d.b.WaitEvent(fork), d.fill(d.b, 0, 1))
		}, cu.ErrStreamCaptureUnjoined},
		"panics": {func() error { panic(why) }, nil},
		"ends its goroutine": {func() error {
			if err := d.fill(d.a, 0, 1); err != nil {
				return err
			}
			runtime.Goexit()
			return nil
		}, nil},
	} {
		var g *cu.Graph
		var err error
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() { _ = recover() }()
			g, err = d.a.Capture(c.record)
		})
		wg.Wait()
		require.ErrorIs(t, err, c.want, name)
		require.Nil(t, g, name)
		for _, stream := range []*cu.Stream{d.a, d.b} {
			require.Equal(t, cu.CaptureNone, status(t, stream), name)
			require.NoError(t, stream.Synchronize(soon(t)), name)
		}
		require.NoError(t, d.ctx.Synchronize(soon(t)), name)
		require.Equal(t, byte(0), d.read(t, 1)[0], name)
		require.Equal(t, s.count("cuStreamEndCapture"), s.count("cuGraphDestroy"), name)
	}
}

// waitForOutside makes the captured stream a wait for an event outside the capture.
func (d *drawing) waitForOutside(t testing.TB) error {
	t.Helper()
	outside := d.event(t)
	require.NoError(t, outside.Record(d.b))
	return d.a.WaitEvent(outside)
}

// Two captures cannot become one.
func TestCapturesDoNotMerge(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	e := d.event(t)
	_, err := d.a.Capture(func() error {
		require.NoError(t, errors.Join(d.fill(d.a, 0, 1), e.Record(d.a)))
		_, err := d.b.Capture(func() error { return d.b.WaitEvent(e) })
		require.ErrorIs(t, err, cu.ErrStreamCaptureMerge)
		require.ErrorContains(t, err, "captures cannot be joined")
		return nil
	})
	require.ErrorIs(t, err, cu.ErrStreamCaptureInvalidated)
	require.ErrorContains(t, err, "its error says why")
}

// Nobody waits for what is not done, and asking spoils nothing: neither in the
// capture nor from anywhere else. Memory of a pool, and functions of the host, would
// belong to the graph.
func TestWaitingForACaptureIsRefused(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	fork, join, host := d.event(t), d.event(t), make([]byte, 1)
	twin := cutest.Context(t, d.ctx.Device())
	exec := executable(t, d.captured(t, func() error { return nil }))
	pooled, calls := ok(d.a.AllocAsync(4096))(t), cu.PendingCalls()
	g := d.captured(t, func() error {
		require.NoError(t, errors.Join(d.fill(d.a, 0, 3), fork.Record(d.a), d.b.WaitEvent(fork)))
		for name, wait := range map[string]func() error{
			"Query":                             func() error { _, err := d.a.Query(); return err },
			"Query joined":                      func() error { _, err := d.b.Query(); return err },
			"Synchronize":                       func() error { return d.a.Synchronize(t.Context()) },
			"Synchronize in the driver":         func() error { return d.b.Synchronize(noEnd{t.Context()}) },
			"Launch":                            func() error { return exec.Launch(d.a) },
			"Upload":                            func() error { return exec.Upload(d.b) },
			"Context.Synchronize":               func() error { return d.ctx.Synchronize(t.Context()) },
			"Context.Synchronize in the driver": func() error { return d.ctx.Synchronize(noEnd{t.Context()}) },
			"AllocAsync":                        func() error { return errOf(d.a.AllocAsync(4096)) },
			"FreeAsync":                         func() error { return pooled.FreeAsync(d.a) },
			"Call":                              func() error { return d.a.Call(func() { panic("called") }) },
			"Context.Synchronize of a twin":     func() error { return twin.Synchronize(noEnd{t.Context()}) },
		} {
			err := wait()
			require.ErrorIs(t, err, cu.ErrStreamCaptureUnsupported, name)
			require.ErrorContains(t, err, "captured work does not run", name)
		}
		require.Equal(t, cu.CaptureActive, status(t, d.a))
		return errors.Join(join.Record(d.b), d.a.WaitEvent(join))
	})
	require.Equal(t, calls, cu.PendingCalls())
	require.NoError(t, pooled.FreeAsync(d.a), "it remained")
	require.Equal(t, map[cu.GraphNodeType]int{cu.NodeFill: 1}, types(t, g))

	g, err := d.a.Capture(func() error { return errors.Join(cu.CopyToHostAsync(d.a, host, d.mem), d.a.Synchronize(t.Context())) })
	require.ErrorIs(t, err, cu.ErrStreamCaptureUnsupported)
	require.Nil(t, g)

	// Other streams are waited for as ever.
	d.captured(t, func() error {
		return errors.Join(d.fill(d.a, 0, 3), d.fill(d.b, 1, 3), d.b.Synchronize(t.Context()), cu.CopyToHostAsync(d.b, host, d.at(1)), d.b.Synchronize(t.Context()))
	})
	require.Equal(t, []byte{3}, host)
}

// Copies that wait are done, not captured. While a stream is captured that the
// null stream waits for they are refused, and the capture goes on.
func TestCopiesThatWaitAreNotCaptured(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	g := d.captured(t, func() error { return cu.CopyToDevice(d.ctx, d.mem, []byte{7}) })
	require.Empty(t, types(t, g))
	require.Equal(t, []byte{7}, d.read(t, 1))

	blocking := ok(d.ctx.NewStreamWith(cu.StreamOptions{Blocking: true}))(t)
	g, err := blocking.Capture(func() error {
		require.ErrorIs(t, cu.CopyToDevice(d.ctx, d.mem, []byte{8}), cu.ErrStreamCaptureImplicit)
		return d.fill(blocking, 0, 9)
	})
	require.NoError(t, err)
	require.Equal(t, map[cu.GraphNodeType]int{cu.NodeFill: 1}, types(t, g))
	require.Equal(t, []byte{7}, d.read(t, 1))
	require.NoError(t, errors.Join(g.Close(), blocking.Close()))
}

// A closed stream or context takes the capture with it.
func TestStreamClosedWhileCaptured(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	fork := d.event(t)
	g, err := d.a.Capture(func() error {
		return errors.Join(d.fill(d.a, 0, 1), fork.Record(d.a), d.b.WaitEvent(fork), d.a.Close())
	})
	require.ErrorIs(t, err, cu.ErrClosed)
	require.Nil(t, g)
	require.NoError(t, d.b.Synchronize(soon(t)))
	require.NoError(t, d.ctx.Synchronize(soon(t)))

	ctx := ok(d.ctx.Device().PrimaryContext())(t)
	s := ok(ctx.NewStream())(t)
	require.ErrorIs(t, errOf(s.Capture(func() error { return errors.Join(cu.FillAsync(s, d.mem, uint8(1), 1), ctx.Close()) })), cu.ErrClosed)
	require.NoError(t, d.ctx.Synchronize(soon(t)))
}

// Invariant 1: any goroutine, so any thread, gives work to the capture, and the
// one that began it may be on another thread in the end. Others allocate and
// wait meanwhile.
func TestCaptureFromManyGoroutines(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	const workers, each = 8, 20
	stop := make(chan struct{})
	var wg, others sync.WaitGroup
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			mem, err := d.ctx.Alloc(4096)
			if err == nil {
				err = errors.Join(cu.FillAsync(d.b, mem.Ptr(), uint8(1), 4096), d.b.Synchronize(t.Context()))
				for closing := mem.Close(); closing != nil; closing = mem.Close() {
					if !errors.Is(closing, cu.ErrInUse) { // refused while there is a capture
						err = errors.Join(err, closing)
						break
					}
				}
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer func() { close(stop); others.Wait() }()
	for range 5 {
		g := d.captured(t, func() error {
			errs := make(chan error, workers)
			for w := range workers {
				wg.Go(func() {
					// A thread of its own, which ends with the goroutine.
					runtime.LockOSThread()
					var err error
					for i := range each {
						err = errors.Join(err, d.fill(d.a, uint64(w*each+i), uint8(w+1)))
					}
					errs <- err
				})
			}
			wg.Wait()
			close(errs)
			var err error
			for e := range errs {
				err = errors.Join(err, e)
			}
			return err
		})
		require.Equal(t, map[cu.GraphNodeType]int{cu.NodeFill: workers * each}, types(t, g))
		exec := executable(t, g)
		require.NoError(t, g.Close())
		require.NoError(t, cu.FillAsync(d.a, d.mem, uint8(0), d.size))
		require.NoError(t, exec.Launch(d.a))
		got := d.read(t, workers*each)
		for i, v := range got {
			require.EqualValues(t, i/each+1, v)
		}
		require.NoError(t, exec.Close())
	}
}

// A capture in one context is nobody's business in another.
func TestCaptureStaysInItsContext(t *testing.T) {
	drv := cutest.Driver(t)
	a, b := cutest.TwoDevices(t, drv)
	d, other := newDrawing(t, a), newDrawing(t, b)
	d.captured(t, func() error {
		return errors.Join(other.fill(other.a, 0, 1), other.a.Synchronize(t.Context()), other.ctx.Synchronize(t.Context()))
	})
	require.Equal(t, byte(1), other.read(t, 1)[0])
}
