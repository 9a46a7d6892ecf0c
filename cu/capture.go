package cu

import (
	"sync"
	"sync/atomic"

	"github.com/gpufd/gpufd/cu/sys"
)

// CaptureStatus says whether a stream is being captured: CUstreamCaptureStatus.
type CaptureStatus uint32

// The states of a stream.
const (
	CaptureNone        CaptureStatus = CaptureStatus(sys.CU_STREAM_CAPTURE_STATUS_NONE)        // it does its work
	CaptureActive      CaptureStatus = CaptureStatus(sys.CU_STREAM_CAPTURE_STATUS_ACTIVE)      // its work is recorded
	CaptureInvalidated CaptureStatus = CaptureStatus(sys.CU_STREAM_CAPTURE_STATUS_INVALIDATED) // its capture has failed and not ended yet
)

// String gives the status' name in C.
func (s CaptureStatus) String() string { return sys.CUstreamCaptureStatus(s).String() }

// Capture calls record and returns a graph of the work that is given to s
// meanwhile. None of that work runs (cuStreamBeginCapture_v2,
// cuStreamEndCapture). The caller owns the graph. If record fails, Capture
// returns its error and drops what was captured. The calls may come from any
// goroutine.
//
// A stream that waits for an event recorded in s during the capture is captured
// too, until Capture returns. s must wait for its last work in the same way, or
// Capture fails with [ErrStreamCaptureUnjoined]. Capture refuses the null stream,
// and a stream that is being captured.
//
// Captured work does not run, so nothing can wait for it. On a captured stream
// [Stream.Query], [Stream.Synchronize], [Stream.Call], [GraphExec.Launch] and
// memory of pools fail with [ErrStreamCaptureUnsupported] from any goroutine, and
// so do [Context.Synchronize] and copies and fills that wait and are given s. Given
// another [Queue] they run, but fail with [ErrStreamCaptureImplicit] in the null
// stream while a blocking stream is captured. None of that harms the capture. Other mistakes spoil it, such as
// asking an event that was recorded in it ([ErrCapturedEvent]); Capture then
// fails with [ErrStreamCaptureInvalidated].
//
// Every launch reads and writes the slices and memory of captured copies. The
// caller keeps them alive, and reachable for the garbage collector, for as long
// as the graph and what is made of it may be launched.
func (s *Stream) Capture(record func() error) (*Graph, error) {
	if err := s.beginCapture(); err != nil {
		return nil, err
	}
	returned := false
	defer func() {
		if !returned { // record panicked, or ended its goroutine
			g, _ := s.endCapture()
			_ = g.Close()
		}
	}()
	err := record()
	returned = true
	g, endErr := s.endCapture()
	if err != nil {
		_ = g.Close()
		return nil, err
	}
	return g, endErr
}

func (s *Stream) beginCapture() error {
	const op = "cuStreamBeginCapture_v2"
	if s == nil {
		return unusable(op, "the stream", true)
	}
	inner := s.ctx.inner
	inner.dev.drv.captures.add(inner.ctx, 1)
	refs := inner.references()
	s.lockCaptures(refs)
	defer s.unlockCaptures(refs)
	s.captured.Add(1)
	err := s.run(op, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuStreamBeginCapture_v2(h, sys.CU_STREAM_CAPTURE_MODE_RELAXED)
	})
	if err != nil {
		inner.dev.drv.captures.add(inner.ctx, -1)
	}
	return err
}

// endCapture ends what beginCapture began. If it fails, the graph is nil.
func (s *Stream) endCapture() (*Graph, error) {
	inner := s.ctx.inner
	defer inner.dev.drv.captures.add(inner.ctx, -1)
	if !s.enter() {
		return nil, unusable("cuStreamEndCapture", "the stream", false) // the driver has ended the capture with it
	}
	defer s.leave()
	return s.ctx.newGraph("cuStreamEndCapture", func(call sys.Caller, out *sys.CUgraph) sys.CUresult {
		r := call.CuStreamEndCapture(s.stream, out)
		if r == sys.CUDA_SUCCESS && *out == 0 {
			r = sys.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
		}
		return r
	})
}

// CaptureStatus reports whether the stream is being captured
// (cuStreamIsCapturing).
func (s *Stream) CaptureStatus() (CaptureStatus, error) {
	status, err := ask(s.run, "cuStreamIsCapturing", sys.Caller.CuStreamIsCapturing)
	return CaptureStatus(status), err
}

// NotCaptured returns [ErrStreamCaptureUnsupported] while s is being captured,
// and nil otherwise. It is for work that makes no sense in a graph. It asks the
// driver (cuStreamIsCapturing) only during some [Stream.Capture], and does not
// harm that.
func (s *Stream) NotCaptured() error {
	return s.run("cuStreamIsCapturing", s.refuseCaptured)
}

// refuseCaptured refuses a call on s while s is being captured.
func (s *Stream) refuseCaptured(call sys.Caller, h sys.CUstream) sys.CUresult {
	return s.ctx.inner.refuseCaptured(call, h)
}

// refuseCaptured returns the result of a call that cannot be captured, if the
// stream is. The driver would give the same, and spoil the capture, which may be
// another goroutine's. Without a capture it costs nothing.
func (h *contextHandle) refuseCaptured(call sys.Caller, stream sys.CUstream) sys.CUresult {
	if h.dev.drv.captures.all.Load() == 0 {
		return sys.CUDA_SUCCESS
	}
	status := new(sys.CUstreamCaptureStatus)
	r := call.CuStreamIsCapturing(stream, status)
	if r == sys.CUDA_SUCCESS && *status != sys.CU_STREAM_CAPTURE_STATUS_NONE {
		return sys.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	}
	return r
}

// captures counts the calls of [Stream.Capture] that are under way.
type captures struct {
	all atomic.Int32
	mu  sync.Mutex
	of  map[sys.CUcontext]int // by the context that they began in
}

func (c *captures) add(ctx sys.CUcontext, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[sys.CUcontext]int{}
	}
	c.all.Add(int32(n))
	if c.of[ctx] += n; c.of[ctx] == 0 {
		delete(c.of, ctx)
	}
}

// in reports whether a capture is under way in a context.
func (c *captures) in(ctx sys.CUcontext) bool {
	if c.all.Load() == 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[ctx] > 0
}
