package cu

import (
	"context"
	"math"
	"runtime"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/wait"
)

// A Stream is a queue of work in a context, done in order and apart from other
// streams. The caller owns it. It is safe for concurrent use.
//
// To functions that take a [Context] too, a nil *Stream names the null stream,
// which orders itself with every stream but those made by [Context.NewStream].
// The methods of a nil *Stream return [ErrClosed].
type Stream struct {
	*streamHandle
	ctx *Context
}

// streamHandle is the part of a Stream that its context closes.
type streamHandle struct {
	gate
	stream sys.CUstream
}

// StreamOptions are what a stream can be made with. The zero value is what
// [Context.NewStream] takes.
type StreamOptions struct {
	// Priority is the lower the more urgent. The driver clamps it to the
	// device's range, which for no device lacks 0, the least urgent.
	Priority int
	// Blocking has the stream and the null stream wait for each other.
	Blocking bool
}

// NewStream creates a stream that does not wait for the null stream
// (cuStreamCreate with CU_STREAM_NON_BLOCKING).
func (c *Context) NewStream() (*Stream, error) {
	return c.newStream("cuStreamCreate", func(call sys.Caller, h *sys.CUstream) sys.CUresult {
		return call.CuStreamCreate(h, uint32(sys.CU_STREAM_NON_BLOCKING))
	})
}

// NewStreamWith creates a stream with a priority, or one that orders itself
// with the null stream (cuStreamCreateWithPriority).
func (c *Context) NewStreamWith(o StreamOptions) (*Stream, error) {
	flags := sys.CU_STREAM_NON_BLOCKING
	if o.Blocking {
		flags = sys.CU_STREAM_DEFAULT
	}
	return c.newStream("cuStreamCreateWithPriority", func(call sys.Caller, h *sys.CUstream) sys.CUresult {
		return call.CuStreamCreateWithPriority(h, uint32(flags), int32(min(max(o.Priority, math.MinInt32), math.MaxInt32)))
	})
}

func (c *Context) newStream(op string, create func(sys.Caller, *sys.CUstream) sys.CUresult) (*Stream, error) {
	s := &Stream{&streamHandle{}, c}
	err := c.inner.run(op, func(call sys.Caller) sys.CUresult {
		h := new(sys.CUstream)
		r := create(call, h)
		if r == sys.CUDA_SUCCESS {
			s.stream = *h
			c.inner.adopt(s.streamHandle)
		}
		return r
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Context returns the context that the stream was made in.
func (s *Stream) Context() *Context { return s.ctx }

// Handle returns the driver's own handle, that of the null stream for a nil
// *Stream. It is valid until Close, and as long as s is reachable.
func (s *Stream) Handle() sys.CUstream {
	if s == nil {
		return 0
	}
	return s.stream
}

// Close destroys the stream; work already in it is still done
// (cuStreamDestroy). It does not wait, not even for a stream that waits itself.
// A second Close, or one after the context's, does nothing.
func (s *Stream) Close() error {
	if s == nil {
		return nil
	}
	defer runtime.KeepAlive(s) // and so its context
	return s.ctx.inner.release(s.streamHandle)
}

func (s *streamHandle) closeIn(h *contextHandle) error {
	if !s.gate.close() {
		return nil
	}
	return h.check("cuStreamDestroy_v2", h.call.CuStreamDestroy_v2(s.stream))
}

// Query reports whether all work in the stream is done (cuStreamQuery).
func (s *Stream) Query() (done bool, err error) {
	defer runtime.KeepAlive(s)
	if s == nil || !s.enter() {
		return false, ErrClosed
	}
	defer s.leave()
	return s.query(s.ctx.inner)
}

// Priority returns the stream's priority, as it was clamped
// (cuStreamGetPriority).
func (s *Stream) Priority() (int, error) {
	p := new(int32)
	err := s.do("cuStreamGetPriority", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuStreamGetPriority(h, p)
	})
	return int(*p), err
}

// Blocking reports whether the stream and the null stream wait for each other
// (cuStreamGetFlags).
func (s *Stream) Blocking() (bool, error) {
	flags := new(uint32)
	err := s.do("cuStreamGetFlags", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuStreamGetFlags(h, flags)
	})
	return err == nil && *flags&uint32(sys.CU_STREAM_NON_BLOCKING) == 0, err
}

// ID returns a number that no other stream of this process has or had
// (cuStreamGetId, CUDA 12.0).
func (s *Stream) ID() (uint64, error) {
	id := new(uint64)
	err := s.do("cuStreamGetId", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuStreamGetId(h, id)
	})
	return *id, err
}

// WaitEvent has the work that is given to s from now on wait for the latest
// record of e, in whatever stream, context or device that was; a later record
// does not matter, and e may be closed meanwhile. Of an event that was never
// recorded there is nothing to wait for (cuStreamWaitEvent). It returns at
// once.
func (s *Stream) WaitEvent(e *Event) error {
	const op = "cuStreamWaitEvent"
	if s == nil || e == nil || !e.enter() {
		return ErrClosed
	}
	defer runtime.KeepAlive(e)
	defer e.leave()
	if err := e.driver().refuseOther(op, "the event", s.ctx.inner.dev.drv); err != nil {
		return err
	}
	return s.do(op, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuStreamWaitEvent(h, e.event, uint32(sys.CU_EVENT_WAIT_DEFAULT))
	})
}

// query is Query for a stream that is open. The zero handle is the null stream.
func (s *streamHandle) query(h *contextHandle) (done bool, err error) {
	const op = "cuStreamQuery"
	if err := h.begin(op); err != nil {
		return false, err
	}
	defer h.leave()
	r := h.refuseCaptured(h.call, s.stream)
	if r == sys.CUDA_SUCCESS {
		r = h.call.CuStreamQuery(s.stream)
	}
	return h.answer(op, r)
}

// Synchronize waits until all work in the stream is done or ctx is. It polls
// with growing pauses, so that a wait that is given up leaves no thread behind;
// with a context that cannot end it waits in the driver
// (cuStreamSynchronize).
func (s *Stream) Synchronize(ctx context.Context) error {
	if s == nil {
		return ErrClosed
	}
	if ctx.Done() == nil {
		return s.waitIn(s.ctx)
	}
	return poll(ctx, s.Query)
}

// waitIn waits in the driver for s, or for c's null stream.
func (s *Stream) waitIn(c *Context) error {
	return s.use(c, "cuStreamSynchronize", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		if r := c.inner.refuseCaptured(call, h); r != sys.CUDA_SUCCESS {
			return r
		}
		return call.CuStreamSynchronize(h)
	})
}

// mayWaitIn refuses what ends in waitIn while s is captured, before any of it
// is captured.
func (s *Stream) mayWaitIn(c *Context) error {
	return s.use(c, "cuStreamSynchronize", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return c.inner.refuseCaptured(call, h)
	})
}

// A streamCall makes one driver call on a stream.
type streamCall = func(sys.Caller, sys.CUstream) sys.CUresult

// use makes one driver call on a stream, nil for c's null stream.
func (s *Stream) use(c *Context, op string, f streamCall) error {
	return s.useEither(c, op, f, "", nil)
}

// do is use for a method of a stream.
func (s *Stream) do(op string, f streamCall) error { return s.doEither(op, f, "", nil) }

// doEither is do for a function that drivers before op have as older, which g
// calls.
func (s *Stream) doEither(op string, f streamCall, older string, g streamCall) error {
	if s == nil {
		return ErrClosed
	}
	return s.useEither(s.ctx, op, f, older, g)
}

func (s *Stream) useEither(c *Context, op string, f streamCall, older string, g streamCall) error {
	defer runtime.KeepAlive(c)
	var handle sys.CUstream
	if s != nil {
		if !s.enter() {
			return ErrClosed
		}
		defer s.leave()
		handle = s.stream
		if s.ctx.inner.ctx != c.inner.ctx {
			return &Error{Op: op, Result: ErrInvalidHandle, Text: "the stream belongs to another context"}
		}
	}
	inner := c.inner
	if err := inner.begin(op); err != nil {
		return err
	}
	defer inner.leave()
	r := f(inner.call, handle)
	if r == sys.SymbolMissing && older != "" {
		op, r = older, g(inner.call, handle)
	}
	_, err := inner.answer(op, r)
	return err
}

// The pauses of a poll: none at first, then doubling between these.
const (
	pollSpins = 64
	pollMin   = 20 * time.Microsecond
	pollMax   = 2 * time.Millisecond
)

// poll asks done until it says yes, fails, or ctx ends.
func poll(ctx context.Context, done func() (bool, error)) error {
	pause := pollMin
	for i := 0; ; i++ {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if err := wait.Err(ctx); err != nil {
			return err
		}
		if i < pollSpins {
			runtime.Gosched()
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, pollMax)
	}
}
