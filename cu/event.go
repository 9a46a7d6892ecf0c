package cu

import (
	"context"
	"runtime"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
)

// EventFlags say what an event is for. They can be combined.
type EventFlags uint32

// The flags of an event.
const (
	EventDefault       = EventFlags(sys.CU_EVENT_DEFAULT)        // it records the time, and a wait in the driver spins
	EventBlockingSync  = EventFlags(sys.CU_EVENT_BLOCKING_SYNC)  // a wait in the driver sleeps
	EventDisableTiming = EventFlags(sys.CU_EVENT_DISABLE_TIMING) // it does not record the time: recording and waiting are cheaper
	EventInterprocess  = EventFlags(sys.CU_EVENT_INTERPROCESS)   // it can be shared, see Event.IPCHandle; needs EventDisableTiming too
)

// An Event marks a point in a stream. Other streams and the host can wait for it,
// and two events measure the time between them. The caller owns it. It is safe
// for concurrent use. The methods of a nil *Event return [ErrClosed].
type Event struct {
	*eventHandle
	ctx *Context
}

// eventHandle is the part of an Event that its context closes.
type eventHandle struct {
	gate
	event sys.CUevent
}

// NewEvent creates an event for streams of c (cuEventCreate). [ErrNotSupported]:
// the device cannot share events with other processes.
func (c *Context) NewEvent(flags EventFlags) (*Event, error) {
	e := &Event{&eventHandle{}, c}
	return made(e, c.create("cuEventCreate", e.eventHandle, func(call sys.Caller) sys.CUresult {
		return call.CuEventCreate(&e.event, uint32(flags))
	}))
}

// Context returns the event's context.
func (e *Event) Context() *Context {
	if e == nil {
		return nil
	}
	return e.ctx
}

// Handle returns the driver's own handle.
func (e *Event) Handle() sys.CUevent {
	if e == nil {
		return 0
	}
	return e.event
}

// Close destroys the event, without waiting; streams that wait for it still do
// (cuEventDestroy).
func (e *Event) Close() error {
	if e == nil {
		return nil
	}
	return e.ctx.release(e.eventHandle)
}

func (e *eventHandle) closeIn(h *contextHandle) error {
	return h.check("cuEventDestroy_v2", h.call.CuEventDestroy_v2(e.event))
}

// Record marks the end of the work that s has now, instead of an earlier mark,
// and returns at once (cuEventRecord). [ErrInvalidHandle]: s is of another
// context.
func (e *Event) Record(s *Stream) error {
	const op = "cuEventRecord"
	if e == nil || !e.enter() {
		return unusable(op, "the event", e == nil)
	}
	defer runtime.KeepAlive(e)
	defer e.leave()
	return s.runIn(e.ctx, op, func(call sys.Caller, h sys.CUstream) sys.CUresult {
		return call.CuEventRecord(e.event, h)
	})
}

// Query reports whether the work before the latest Record is done (cuEventQuery).
// Without a Record it is true.
func (e *Event) Query() (done bool, err error) {
	err = e.run("cuEventQuery", func(call sys.Caller) sys.CUresult { return answer(call.CuEventQuery(e.event), &done) })
	return done, err
}

// Synchronize waits until the work before the latest Record is done or ctx ends
// (cuEventSynchronize).
func (e *Event) Synchronize(ctx context.Context) error {
	if ctx.Done() != nil {
		return poll(ctx, e.Query)
	}
	return e.run("cuEventSynchronize", func(call sys.Caller) sys.CUresult { return call.CuEventSynchronize(e.event) })
}

// Elapsed returns the time between the latest record of since and that of e,
// negative if e's came first (cuEventElapsedTime). The resolution is about half a
// microsecond and, past eight seconds, that of a float32 in milliseconds.
//
// Errors: [ErrNotReady] while either is still to happen; [ErrInvalidHandle] if
// either was never recorded, does not record the time or is of another context.
func (e *Event) Elapsed(since *Event) (time.Duration, error) {
	const op = "cuEventElapsedTime"
	if since == nil || !since.enter() {
		return 0, unusable(op, "the other event", since == nil)
	}
	defer runtime.KeepAlive(since)
	defer since.leave()
	if e == nil {
		return 0, unusable(op, "the event", true)
	}
	if err := since.driver().refuseOther(op, "the other event", e.driver()); err != nil {
		return 0, err
	}
	ms := new(float32)
	err := e.run(op, func(call sys.Caller) sys.CUresult {
		return older(call.CuEventElapsedTime_v2(ms, since.event, e.event), func() sys.CUresult {
			return call.CuEventElapsedTime(ms, since.event, e.event)
		})
	})
	return time.Duration(float64(*ms) * float64(time.Millisecond)), err
}

func (e *Event) driver() *Driver { return e.ctx.inner.dev.drv }

// run makes one driver call on the event.
func (e *Event) run(op string, f func(sys.Caller) sys.CUresult) error {
	if e == nil || !e.enter() {
		return unusable(op, "the event", e == nil)
	}
	defer e.leave()
	return e.ctx.run(op, f)
}
