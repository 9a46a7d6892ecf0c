package cu

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
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

// NewStream creates a stream that does not wait for the null stream
// (cuStreamCreate with CU_STREAM_NON_BLOCKING).
func (c *Context) NewStream() (*Stream, error) {
	s := &Stream{&streamHandle{}, c}
	err := c.inner.run("cuStreamCreate", func(call sys.Caller) sys.CUresult {
		h := new(sys.CUstream)
		r := call.CuStreamCreate(h, uint32(sys.CU_STREAM_NON_BLOCKING))
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

// Close destroys the stream; work already in it is still done
// (cuStreamDestroy). A second Close, or one after the context's, does nothing.
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
	return h.check("cuStreamDestroy_v2", h.caller().CuStreamDestroy_v2(s.stream))
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

// query is Query for a stream that is open. The zero handle is the null stream.
func (s *streamHandle) query(h *contextHandle) (done bool, err error) {
	return h.ask("cuStreamQuery", func(call sys.Caller) sys.CUresult { return call.CuStreamQuery(s.stream) })
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
		return call.CuStreamSynchronize(h)
	})
}

// use makes one driver call on a stream, nil for c's null stream.
func (s *Stream) use(c *Context, op string, f func(sys.Caller, sys.CUstream) sys.CUresult) error {
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
	return c.inner.run(op, func(call sys.Caller) sys.CUresult { return f(call, handle) })
}

// ended is the error for a context that ended, which matches both.
func ended(err, cause error) error {
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
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
		if err := ctx.Err(); err != nil {
			return ended(err, context.Cause(ctx))
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
