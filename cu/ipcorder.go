package cu

import "context"

// An IPCOrder has streams of two processes come one after the other by an event
// that both have ([Event.IPCHandle], [Context.OpenIPCEvent]). It works where both
// have /dev/shm in common, so not between most containers; share.Counter does. It
// is safe for concurrent use.
//
// It waits on the host. A stream that waited for the record of a process which
// has died would wait for ever, and nothing frees it, not even a record of one's
// own (D20b).
type IPCOrder struct {
	event *Event
}

// NewIPCOrder makes one of an event, which it takes: Close closes it.
func NewIPCOrder(e *Event) (*IPCOrder, error) {
	if e == nil {
		return nil, ErrClosed
	}
	return &IPCOrder{e}, nil
}

// Record lets those go on in the other process who wait from now on, when the
// work that s has is done (cuEventRecord). Tell the peer when it has been called:
// a wait for an event that was not recorded waits for nothing.
func (o *IPCOrder) Record(s *Stream) error {
	if o == nil {
		return ErrClosed
	}
	return o.event.Record(s)
}

// Wait waits until the latest Record of the other process has happened, or ctx
// ends: its error is then [context.Context.Err] with the cause, and the peer may
// have died. What is given to any stream after a Wait without error comes after
// what was recorded. Whoever records anew meanwhile is waited for as well
// (cuEventQuery, with growing pauses).
func (o *IPCOrder) Wait(ctx context.Context) error {
	if o == nil {
		return ErrClosed
	}
	return poll(ctx, o.event.Query)
}

// Close closes the event here. A second Close does nothing.
func (o *IPCOrder) Close() error {
	if o == nil {
		return nil
	}
	return o.event.Close()
}
