package cu

import "context"

// An IPCOrder orders streams of two processes by an event that both have
// ([Event.IPCHandle], [Context.OpenIPCEvent]). It works where both share
// /dev/shm, so not between most containers; share.Counter does. It waits on the
// host: a stream that waited for the record of a process which has died would
// wait for ever (D20b). It is safe for concurrent use.
type IPCOrder struct {
	event *Event
}

// NewIPCOrder makes an IPCOrder of e, which it takes: Close closes it.
func NewIPCOrder(e *Event) (*IPCOrder, error) {
	if e == nil {
		return nil, ErrClosed
	}
	return &IPCOrder{e}, nil
}

// Record marks the end of the work that s has now, and returns at once
// (cuEventRecord). Tell the peer when it has returned: a wait for an event that
// was not recorded waits for nothing.
func (o *IPCOrder) Record(s *Stream) error {
	if o == nil {
		return ErrClosed
	}
	return o.event.Record(s)
}

// Wait waits until the other process' latest Record has happened or ctx ends,
// perhaps because the peer has died; the error is then ctx's, with its cause.
// It polls (cuEventQuery), and waits for a new Record meanwhile as well. Work
// given to any stream after Wait comes after what was recorded.
func (o *IPCOrder) Wait(ctx context.Context) error {
	if o == nil {
		return ErrClosed
	}
	return poll(ctx, o.event.Query)
}

// Close closes the event here.
func (o *IPCOrder) Close() error {
	if o == nil {
		return nil
	}
	return o.event.Close()
}
