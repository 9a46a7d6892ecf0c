package sock

import (
	"context"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/internal/plain"
)

// direction is one half of a socket: one operation at a time, with a deadline
// of its own.
type direction struct {
	turn        chan struct{} // holds one token while an operation runs
	setDeadline func(time.Time) error
}

func newDirection(setDeadline func(time.Time) error) direction {
	return direction{turn: make(chan struct{}, 1), setDeadline: setDeadline}
}

// enter waits for the turn. It fails if ctx is done, even when the turn is free.
func (d *direction) enter(ctx context.Context, closed <-chan struct{}) error {
	if err := over(ctx, closed); err != nil {
		return err
	}
	select {
	case d.turn <- struct{}{}:
		return d.unlessClosed(closed)
	case <-closed:
		return ErrClosed
	case <-ctx.Done():
		return plain.ContextErr(ctx)
	}
}

// over returns why a call must not wait any more, or nil.
func over(ctx context.Context, closed <-chan struct{}) error {
	if isClosed(closed) {
		return ErrClosed
	}
	return plain.ContextErr(ctx)
}

// tryEnter takes the turn if it is free.
func (d *direction) tryEnter(closed <-chan struct{}) error {
	if isClosed(closed) {
		return ErrClosed
	}
	select {
	case d.turn <- struct{}{}:
		return d.unlessClosed(closed)
	default:
		return fmt.Errorf("%w: another one is under way", ErrWouldWait)
	}
}

// unlessClosed gives the turn back if closed is closed: nothing would interrupt an
// operation that began after that.
func (d *direction) unlessClosed(closed <-chan struct{}) error {
	if isClosed(closed) {
		d.leave()
		return ErrClosed
	}
	return nil
}

func (d *direction) leave() { <-d.turn }

// past is a deadline that has gone by: setting it wakes what waits.
var past = time.Unix(1, 0)

// interruptWhenDone arms the deadline to go off when ctx is done. The function
// that it returns disarms it, and returns only when this context cannot touch the
// deadline any more: the next operation starts with none.
func (d *direction) interruptWhenDone(ctx context.Context) (disarm func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(fired)
		_ = d.setDeadline(past) // fails only on a closed file, where nothing waits
	})
	return func() {
		if stop() {
			return
		}
		<-fired
		_ = d.setDeadline(time.Time{})
	}
}

// backoff is a pause that doubles. It is for limits of the kernel that no call can
// wait on: a full backlog, no descriptor left, too many in flight.
type backoff struct {
	next, max time.Duration
}

// wait pauses once. It returns an error as soon as ctx is done or closed is closed,
// even if the pause is over as well; a nil closed never closes.
func (b *backoff) wait(ctx context.Context, closed <-chan struct{}) error {
	if err := over(ctx, closed); err != nil {
		return err
	}
	t := time.NewTimer(b.next)
	defer t.Stop()
	b.next = min(2*b.next, b.max)
	select {
	case <-t.C:
		return nil
	case <-closed:
		return ErrClosed
	case <-ctx.Done():
		return plain.ContextErr(ctx)
	}
}
