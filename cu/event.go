package cu

import (
	"context"
	"runtime"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
)

// EventFlags say what an event is for. They may be added up.
type EventFlags uint32

// The flags of an event. With none it keeps the time, and a wait in the driver
// spins.
const (
	EventDefault = EventFlags(sys.CU_EVENT_DEFAULT)
	// EventBlockingSync has a wait in the driver sleep.
	EventBlockingSync = EventFlags(sys.CU_EVENT_BLOCKING_SYNC)
	// EventDisableTiming leaves the time out, which makes recording and waiting
	// cheaper.
	EventDisableTiming = EventFlags(sys.CU_EVENT_DISABLE_TIMING)
	// EventInterprocess lets the event be shared with other processes, see
	// [Event.IPCHandle]; it takes EventDisableTiming too.
	EventInterprocess = EventFlags(sys.CU_EVENT_INTERPROCESS)
)

// An Event marks a point in a stream, for other streams and the host to wait
// for, and to take the time between two. The caller owns it. It is safe for
// concurrent use. The methods of a nil *Event return [ErrClosed].
type Event struct {
	*eventHandle
	ctx *Context
}

// eventHandle is the part of an Event that its context closes.
type eventHandle struct {
	gate
	event sys.CUevent
}

// NewEvent creates an event that can be recorded in streams of c
// (cuEventCreate). [ErrNotSupported]: the device has no events for other
// processes.
func (c *Context) NewEvent(flags EventFlags) (*Event, error) {
	e := &Event{&eventHandle{}, c}
	err := c.inner.run("cuEventCreate", func(call sys.Caller) sys.CUresult {
		h := new(sys.CUevent)
		r := call.CuEventCreate(h, uint32(flags))
		if r == sys.CUDA_SUCCESS {
			e.event = *h
			c.inner.adopt(e.eventHandle)
		}
		return r
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Context returns the context that the event was made in.
func (e *Event) Context() *Context { return e.ctx }

// Handle returns the driver's own handle. It is valid until Close, and as long
// as e is reachable.
func (e *Event) Handle() sys.CUevent { return e.event }

// Close destroys the event; streams that wait for it still do
// (cuEventDestroy). It does not wait. A second Close, or one after the
// context's, does nothing.
func (e *Event) Close() error {
	if e == nil {
		return nil
	}
	defer runtime.KeepAlive(e) // and so its context
	return e.ctx.inner.release(e.eventHandle)
}

func (e *eventHandle) closeIn(h *contextHandle) error {
	if !e.gate.close() {
		return nil
	}
	return h.check("cuEventDestroy_v2", h.call.CuEventDestroy_v2(e.event))
}

// Record marks the end of the work that s has now, nil for the null stream of
// e's context, and forgets the record before (cuEventRecord). A stream of
// another context is [ErrInvalidHandle].
func (e *Event) Record(s *Stream) error {
	if e == nil || !e.enter() {
		return ErrClosed
	}
	defer runtime.KeepAlive(e)
	defer e.leave()
	return s.use(e.ctx, "cuEventRecord", func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuEventRecord(e.event, h)
	})
}

// Query reports whether the work before the latest Record is done; where there
// was none it is (cuEventQuery).
func (e *Event) Query() (done bool, err error) {
	return e.ask("cuEventQuery", func(call sys.Caller) sys.CUresult { return call.CuEventQuery(e.event) })
}

// Synchronize waits until the work before the latest Record is done or ctx is.
// It polls with growing pauses, so that a wait that is given up leaves no
// thread behind; with a context that cannot end it waits in the driver
// (cuEventSynchronize).
func (e *Event) Synchronize(ctx context.Context) error {
	if ctx.Done() != nil {
		return poll(ctx, e.Query)
	}
	_, err := e.ask("cuEventSynchronize", func(call sys.Caller) sys.CUresult { return call.CuEventSynchronize(e.event) })
	return err
}

// Elapsed returns the time between the latest record of since and that of e,
// negative if e's came first. The driver counts in single-precision
// milliseconds with a resolution of about half a microsecond, which past eight
// seconds grows with the time (cuEventElapsedTime).
//
// Errors: [ErrNotReady] while either is still to happen; [ErrInvalidHandle] if
// either was never recorded or does not keep the time, or if they are of two
// contexts.
func (e *Event) Elapsed(since *Event) (time.Duration, error) {
	if since == nil || !since.enter() {
		return 0, ErrClosed
	}
	defer runtime.KeepAlive(since)
	defer since.leave()
	if e == nil {
		return 0, ErrClosed
	}
	if err := since.driver().refuseOther("cuEventElapsedTime", "the other event", e.driver()); err != nil {
		return 0, err
	}
	ms := new(float32)
	ready, err := e.askEither(
		"cuEventElapsedTime_v2", func(call sys.Caller) sys.CUresult { return call.CuEventElapsedTime_v2(ms, since.event, e.event) },
		"cuEventElapsedTime", func(call sys.Caller) sys.CUresult { return call.CuEventElapsedTime(ms, since.event, e.event) })
	if err == nil && !ready {
		err = e.driver().check("cuEventElapsedTime", sys.CUDA_ERROR_NOT_READY)
	}
	return time.Duration(float64(*ms) * float64(time.Millisecond)), err
}

func (e *Event) driver() *Driver { return e.ctx.inner.dev.drv }

// ask makes one driver call on the event; not ready is an answer and no error.
func (e *Event) ask(op string, f func(sys.Caller) sys.CUresult) (ready bool, err error) {
	return e.askEither(op, f, "", nil)
}

// askEither is ask for a function that drivers before op have as older, which g
// calls.
func (e *Event) askEither(op string, f func(sys.Caller) sys.CUresult, older string, g func(sys.Caller) sys.CUresult) (ready bool, err error) {
	if e == nil || !e.enter() {
		return false, ErrClosed
	}
	defer runtime.KeepAlive(e)
	defer e.leave()
	return e.ctx.inner.askEither(op, f, older, g)
}
