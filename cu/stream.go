package cu

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/plain"
)

// A Stream is a queue of work in a context, done in order and apart from other
// streams. The caller owns it. It is safe for concurrent use. A nil *Stream is
// [ErrClosed] everywhere; [Context.NullStream] is the driver's own.
type Stream struct {
	*streamHandle
	ctx *Context
}

// streamHandle is the part of a Stream that its context closes.
type streamHandle struct {
	gate
	stream   sys.CUstream
	blocking bool
	marking  sync.Mutex    // see marks
	captured atomic.Uint64 // how often it began to be
	guards   guards
	ends     ends
}

// StreamOptions are the options of a new stream. The zero value is that of
// [Context.NewStream].
type StreamOptions struct {
	Priority int  // lower is more urgent; 0 is the least urgent; clamped to the device's range
	Blocking bool // the stream and the null stream wait for each other
}

// NullStream returns the driver's stream 0, which every context has. It and
// Blocking streams wait for each other: see [StreamOptions]. Its Close does
// nothing.
func (c *Context) NullStream() *Stream {
	if c == nil {
		return nil
	}
	return c.null
}

// NewStream creates a stream that does not wait for the null stream
// (cuStreamCreate with CU_STREAM_NON_BLOCKING).
func (c *Context) NewStream() (*Stream, error) {
	return c.newStream("cuStreamCreate", false, func(call sys.Caller, h *sys.CUstream) sys.CUresult {
		return call.CuStreamCreate(h, uint32(sys.CU_STREAM_NON_BLOCKING))
	})
}

// NewStreamWith creates a stream with a priority, or one that waits for the null
// stream and holds it up (cuStreamCreateWithPriority).
func (c *Context) NewStreamWith(o StreamOptions) (*Stream, error) {
	flags := sys.CU_STREAM_NON_BLOCKING
	if o.Blocking {
		flags = sys.CU_STREAM_DEFAULT
	}
	return c.newStream("cuStreamCreateWithPriority", o.Blocking, func(call sys.Caller, h *sys.CUstream) sys.CUresult {
		return call.CuStreamCreateWithPriority(h, uint32(flags), int32(min(max(o.Priority, math.MinInt32), math.MaxInt32)))
	})
}

func (c *Context) newStream(op string, blocking bool, create func(sys.Caller, *sys.CUstream) sys.CUresult) (*Stream, error) {
	s := &Stream{&streamHandle{blocking: blocking}, c}
	return made(s, c.create(op, s.streamHandle, func(call sys.Caller) sys.CUresult { return create(call, &s.stream) }))
}

// Context returns the stream's context.
func (s *Stream) Context() *Context {
	if s == nil {
		return nil
	}
	return s.ctx
}

// Handle returns the driver's own handle, 0 for the null stream.
func (s *Stream) Handle() sys.CUstream {
	if s == nil {
		return 0
	}
	return s.stream
}

// Close destroys the stream; work already in it is still done (cuStreamDestroy).
// It waits for calls under way and for those of [Stream.OnClose], and until a stream that is full has room for one more
// event, but for no other work of the stream.
// A second Close returns nil at once, also while the first one waits.
func (s *Stream) Close() error {
	if s == nil || s == s.ctx.null || s.isClosed() {
		return nil
	}
	fs, first := s.ends.begin()
	if !first { // it would destroy the stream before those are done
		return nil
	}
	var calls sync.WaitGroup
	for _, f := range fs { // at once: one may wait for what another lets go of
		calls.Go(f)
	}
	calls.Wait()
	return s.ctx.release(s.streamHandle)
}

// OnClose makes Close call f first, once, while s still accepts work. Close waits for f, which
// must end soon. Those of several keys are called at once, each on a goroutine of its own. A later f
// with the same key replaces an earlier one; nil removes it. f is not called if s ends with its context.
//
// OnClose returns false once Close has begun: then f is not called.
func (s *Stream) OnClose(key any, f func()) bool { return s != nil && s.ends.set(key, f) }

// ends has what Close calls first.
type ends struct {
	mu    sync.Mutex
	begun bool
	calls map[any]func()
}

// set is OnClose.
func (e *ends) set(key any, f func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.begun:
		return false
	case f == nil:
		delete(e.calls, key)
		return true
	case e.calls == nil:
		e.calls = map[any]func(){}
	}
	e.calls[key] = f
	return true
}

// begin returns what Close has to call, and whether it is the first. From here on set takes nothing.
func (e *ends) begin() (calls map[any]func(), first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	calls, first = e.calls, !e.begun
	e.begun, e.calls = true, nil
	return calls, first
}

func (s *streamHandle) closeIn(h *contextHandle) error {
	err := h.keepTail(s)
	return errors.Join(err, h.check("cuStreamDestroy_v2", h.call.CuStreamDestroy_v2(s.stream)))
}

// Query reports whether all work in the stream is done (cuStreamQuery).
func (s *Stream) Query() (done bool, err error) {
	err = s.runUncaptured("cuStreamQuery", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return answer(call.CuStreamQuery(h), &done)
	})
	return done, err
}

// Priority returns the stream's priority after clamping (cuStreamGetPriority).
func (s *Stream) Priority() (int, error) {
	p, err := ask(s.run, "cuStreamGetPriority", sys.Caller.CuStreamGetPriority)
	return int(p), err
}

// Blocking reports whether the stream and the null stream wait for each other
// (cuStreamGetFlags).
func (s *Stream) Blocking() (bool, error) {
	flags, err := ask(s.run, "cuStreamGetFlags", sys.Caller.CuStreamGetFlags)
	return err == nil && flags&uint32(sys.CU_STREAM_NON_BLOCKING) == 0, err
}

// ID returns a number that no other stream of this process has or had
// (cuStreamGetId, CUDA 12.0).
func (s *Stream) ID() (uint64, error) {
	return ask(s.run, "cuStreamGetId", sys.Caller.CuStreamGetId)
}

// WaitEvent makes later work on s wait for the latest record of e, in any stream,
// context or device, and returns at once (cuStreamWaitEvent). A later record does
// not matter, and e may be closed meanwhile. If e was never recorded, s does not
// wait.
func (s *Stream) WaitEvent(e *Event) error {
	const op = "cuStreamWaitEvent"
	if s == nil {
		return unusable(op, "the stream", true)
	}
	if e == nil || !e.enter() {
		return unusable(op, "the event", e == nil)
	}
	defer runtime.KeepAlive(e)
	defer e.leave()
	if err := e.driver().refuseOther(op, "the event", s.ctx.inner.dev.drv); err != nil {
		return err
	}
	refs := s.ctx.inner.references()
	s.lockCaptures(refs) // the event may be in a capture, which takes s in
	defer s.unlockCaptures(refs)
	return s.run(op, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuStreamWaitEvent(h, e.event, uint32(sys.CU_EVENT_WAIT_DEFAULT))
	})
}

// Synchronize waits until all work in the stream is done or ctx ends
// (cuStreamSynchronize).
func (s *Stream) Synchronize(ctx context.Context) error {
	if s == nil {
		return unusable("cuStreamSynchronize", "the stream", true)
	}
	if ctx.Done() == nil {
		return s.wait()
	}
	return poll(ctx, s.Query)
}

// wait waits for s in the driver.
func (s *Stream) wait() error {
	return s.runUncaptured("cuStreamSynchronize", sys.Caller.CuStreamSynchronize)
}

// The pauses of a poll: none at first, then doubling between these.
const (
	pollSpins = 64
	pollMin   = 20 * time.Microsecond
	pollMax   = 2 * time.Millisecond
)

// poll asks done until it says yes, fails, or ctx ends.
func poll(ctx context.Context, done func() (bool, error)) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	pause := pollMin
	for i := 0; ; i++ {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if err := plain.ContextErr(ctx); err != nil {
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
