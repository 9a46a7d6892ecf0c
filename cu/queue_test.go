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
	"github.com/gpufd/gpufd/cu/sys"
)

// waitingCalls are the copies and fills that wait, by the driver function that does the work, and
// streamArgs the place of the stream among its arguments.
func waitingCalls(ctx *cu.Context, p cu.DevicePtr) (calls map[string]func(q cu.Queue) error, streamArgs map[string]int) {
	b := make([]byte, 4)
	far := cu.DeviceSide(p, 4)
	far.Context = ctx
	return map[string]func(q cu.Queue) error{
			"cuMemcpyHtoDAsync_v2": func(q cu.Queue) error { return cu.CopyToDevice(q, p, b) },
			"cuMemcpyDtoHAsync_v2": func(q cu.Queue) error { return cu.CopyToHost(q, b, p) },
			"cuMemcpyAsync":        func(q cu.Queue) error { return cu.Copy(q, p, p.Add(8), 4) },
			"cuMemcpyPeerAsync":    func(q cu.Queue) error { return cu.CopyPeer(q, p, ctx, p.Add(8), ctx, 4) },
			"cuMemsetD8Async":      func(q cu.Queue) error { return cu.Fill(q, p, uint8(1), 4) },
			"cuMemsetD2D32Async":   func(q cu.Queue) error { return cu.Fill2D(q, p, 4, uint32(1), 1, 1) },
			"cuMemcpy2DAsync_v2":   func(q cu.Queue) error { return cu.Copy2D(q, cu.DeviceSide(p, 4), cu.HostSide(b, 4), 4, 1) },
			"cuMemcpy3DAsync_v2":   func(q cu.Queue) error { return cu.Copy3D(q, cu.DeviceSide(p, 4), cu.HostSide(b, 4), 4, 1, 1) },
			"cuMemcpy3DPeerAsync":  func(q cu.Queue) error { return cu.Copy2D(q, far, cu.DeviceSide(p.Add(8), 4), 4, 1) },
		}, map[string]int{
			"cuMemcpyHtoDAsync_v2": 3, "cuMemcpyDtoHAsync_v2": 3, "cuMemcpyAsync": 3, "cuMemcpyPeerAsync": 5,
			"cuMemsetD8Async": 3, "cuMemsetD2D32Async": 5, "cuMemcpy2DAsync_v2": 1, "cuMemcpy3DAsync_v2": 1, "cuMemcpy3DPeerAsync": 1,
			"cuStreamSynchronize": 0,
		}
}

// A copy or fill that waits is work of the stream that it is given, behind what the stream has;
// given a context, of its null stream. It waits for that stream and for no other.
func TestWaitingCallsUseTheirQueue(t *testing.T) {
	var streamArgs map[string]int
	seen := map[string]sys.CUstream{}
	dev := cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		if i, ok := streamArgs[call.Symbol()]; ok {
			seen[call.Symbol()] = sys.CUstream(call.Arg(i))
		}
		return next()
	}))
	ctx := cutest.Context(t, dev)
	s, mem := newStream(t, ctx), alloc(t, ctx, 16)
	calls, places := waitingCalls(ctx, mem.Ptr())
	streamArgs = places
	for symbol, call := range calls {
		for name, q := range map[string]cu.Queue{"stream": s, "context": ctx, "null stream": ctx.NullStream()} {
			want := sys.CUstream(0)
			if name == "stream" {
				want = s.Handle()
			}
			clear(seen)
			require.NoError(t, call(q), symbol)
			require.Equal(t, map[string]sys.CUstream{symbol: want, "cuStreamSynchronize": want}, seen, "%s of a %s", symbol, name)
		}
	}
}

// A stream that is captured refuses them, and its capture goes on.
func TestWaitingCallsOfACapturedStream(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s, mem := newStream(t, ctx), alloc(t, ctx, 16)
	calls, _ := waitingCalls(ctx, mem.Ptr())
	g, err := s.Capture(func() error {
		for symbol, call := range calls {
			assert.ErrorIs(t, call(s), cu.ErrStreamCaptureUnsupported, symbol)
		}
		return cu.FillAsync(s, mem, uint8(1), 16)
	})
	require.NoError(t, err)
	require.Equal(t, 1, ok(g.NodeCount())(t))
	require.NoError(t, g.Close())
}

// Nil and closed handles have different errors, which name them and match ErrClosed.
func TestErrorsNameWhatIsNilOrClosed(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	mem := alloc(t, ctx, 64)
	closedStream := ok(ctx.NewStream())(t)
	closedEvent := ok(ctx.NewEvent(0))(t)
	closedMemory := ok(ctx.Alloc(64))(t)
	require.NoError(t, errors.Join(closedStream.Close(), closedEvent.Close(), closedMemory.Close()))
	b := make([]byte, 4)
	var noStream *cu.Stream
	var noContext *cu.Context
	var noMemory *cu.Memory
	for want, err := range map[string]error{
		"cu: cuStreamSynchronize: the stream is nil":                         noStream.Synchronize(t.Context()),
		"cu: cuStreamQuery: the stream is closed":                            errOf(closedStream.Query()),
		"cu: cuStreamQuery: the stream is nil":                               errOf(noStream.Query()),
		"cu: cuCtxSynchronize: the context is nil":                           noContext.Synchronize(t.Context()),
		"cu: cuEventRecord: the event is nil":                                (*cu.Event)(nil).Record(ctx.NullStream()),
		"cu: cuEventRecord: the event is closed":                             closedEvent.Record(ctx.NullStream()),
		"cu: cuMemAlloc_v2: the context is nil":                              errOf(noContext.Alloc(1)),
		"cu: cuMemcpyDtoHAsync_v2: the stream is nil":                        cu.CopyToHost(noStream, b, mem),
		"cu: cuStreamSynchronize: the stream is closed":                      cu.CopyToHost(closedStream, b, mem),
		"cu: cuMemcpyHtoDAsync_v2: the context is nil":                       cu.CopyToDevice(noContext, mem, b),
		"cu: cuMemcpyHtoDAsync_v2: the stream or context is nil":             cu.CopyToDevice(nil, mem, b),
		"cu: cuMemcpyAsync: the destination is nil":                          cu.Copy(ctx, noMemory, mem, 4),
		"cu: cuMemcpyAsync: the source is nil":                               cu.Copy(ctx, mem, cu.Pointer(nil), 4),
		"cu: Fill: the destination, a *cu.Memory, is closed, or has 0 bytes": cu.Fill(ctx, closedMemory, uint8(0), 4),
		"cu: cuIpcGetMemHandle: the memory is closed":                        errOf(closedMemory.IPCHandle()),
	} {
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, cu.ErrClosed, want)
	}
}

// begins is a context with a stream, and a driver where a capture of it begins behind the first call of a driver function
// after arm, until end. asked hears of each question for captures.
type begins struct {
	ctx      *cu.Context
	s        *cu.Stream
	armed    atomic.Bool
	begun    chan struct{}
	ends     chan struct{}
	asked    chan struct{}
	captured chan error
}

func captureBehind(t *testing.T, symbol string, blocking bool, opts ...cu.Option) *begins {
	t.Helper()
	b := &begins{begun: make(chan struct{}), ends: make(chan struct{}), asked: make(chan struct{}, 1000), captured: make(chan error, 1)}
	dev := cutest.Device(t, append(opts, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		r := next()
		switch {
		case call.Symbol() == symbol && b.armed.CompareAndSwap(true, false):
			go b.capture()
			<-b.begun
		case call.Symbol() == "cuStreamIsCapturing":
			select {
			case b.asked <- struct{}{}:
			default:
			}
		}
		return r
	}))...)
	b.ctx = cutest.Context(t, dev)
	b.s = untilEnd(t, ok(b.ctx.NewStreamWith(cu.StreamOptions{Blocking: blocking}))(t))
	return b
}

func (b *begins) capture() {
	g, err := b.s.Capture(func() error {
		close(b.begun)
		<-b.ends
		return nil
	})
	b.captured <- errors.Join(err, g.Close())
}

// end ends the capture, of no work.
func (b *begins) end(t *testing.T) {
	t.Helper()
	close(b.ends)
	require.NoError(t, <-b.captured)
}

// A capture that begins behind a copy keeps its call back until the copy no longer uses the caller's memory.
func TestCaptureBeginsBehindACopyThatWaits(t *testing.T) {
	for name, blocking := range map[string]bool{"of its stream": false, "that bars the null stream": true} {
		t.Run(name, func(t *testing.T) {
			b := captureBehind(t, "cuMemcpyHtoDAsync_v2", blocking)
			s, q := b.s, cu.Queue(b.s)
			if blocking {
				s, q = b.ctx.NullStream(), b.ctx
			}
			mem, pinned := alloc(t, b.ctx, 16), hostMemory(t, b.ctx, 16)
			release := hold(t, s)
			words := ok(cu.HostSlice[uint32](pinned))(t)
			words[0] = 7
			b.armed.Store(true)
			copied := make(chan error, 1)
			go func() { copied <- cu.CopyToDevice(q, mem, words) }()
			<-b.begun
			for range 5 { // more often than it would without waiting
				select {
				case <-b.asked:
				case err := <-copied:
					b.end(t)
					t.Fatal("the copy still runs, and its call has returned: ", err)
				}
			}
			b.end(t)
			require.Empty(t, copied)
			release()
			err := <-copied
			if blocking {
				require.NoError(t, err, "the null stream is not captured")
			} else {
				require.ErrorIs(t, err, cu.ErrStreamCaptureUnsupported)
				require.ErrorContains(t, err, "the work has ended")
			}
			require.EqualValues(t, 7, readBack[uint32](t, b.ctx, mem.Ptr(), 1)[0])
		})
	}
}

// The error does not wait longer for a capture than Close of memory would.
func TestCaptureBehindACopyThatDoesNotEnd(t *testing.T) {
	before := *cu.CaptureLimit
	*cu.CaptureLimit = 20 * time.Millisecond
	defer func() { *cu.CaptureLimit = before }()
	b := captureBehind(t, "cuMemsetD8Async", false)
	mem := alloc(t, b.ctx, 16)
	b.armed.Store(true)
	err := cu.Fill(b.s, mem, uint8(1), 16)
	b.end(t)
	require.ErrorIs(t, err, cu.ErrStreamCaptureUnsupported)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "may still run")
}
