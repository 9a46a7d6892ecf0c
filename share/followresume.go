package share

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// When the lease of an attachment of [Follow] has ended, it takes another lease of the same
// memory, from the producer's successor or from the producer when it is back. Its user does
// not notice: Err is nil even while there is no lease.

// isOver reports whether no other lease can follow t, which has ended. A lease with memory
// of its own ([OfferOptions].CursorSize) is the last. A lease of memory that is detached is taken
// even if other memory has its name: it holds what Reattach is to find.
func (a *Attachment) isOver(t *leaseConn) bool {
	return !a.opts.follows() || a.cursors != nil || t.keeps || a.judged.Load() || serve.IsClosed(t.transport.Superseded) && !a.opts.Overlap && a.asleep.Load() == nil ||
		!errors.Is(t.reason, ErrRestarting) && !errors.Is(t.reason, sock.ErrPeerLost)
}

// mayResume reports whether to take another lease of the memory.
func (a *Attachment) mayResume(t *leaseConn) bool { return a.open.Err() == nil && !a.isOver(t) }

// another takes another lease. It returns nil, and maybe why, if there is none in time, if the name
// stands for other memory, or if the attachment is closed.
func (a *Attachment) another(t *leaseConn) (next *leaseConn, why error) {
	ctx := a.more
	if bound := a.opts.MaxAbsence; bound > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, bound)
		defer cancel()
	}
	var from *attaching
	say := a.opts.OnWait
	if say != nil {
		say = func(err error) { a.opts.OnWait(fmt.Errorf("%w; %w", t.reason, err)) }
	}
	err := retry(ctx, say, errNoAnswer, func() error {
		from = a.resuming()
		from.opts.quiet()
		return from.lease(ctx)
	})
	switch {
	case err == nil:
		return a.change(t, from), nil
	case ctx.Err() != nil:
		return nil, nil
	}
	return nil, err
}

// change makes the new lease of from the attachment's, after t, unless the attachment was
// closed or a verdict was given meanwhile. Notices go on in the same channel; those from the
// new connection come after Offer returns the new producer.
func (a *Attachment) change(t *leaseConn, from *attaching) *leaseConn {
	a.swap.Lock()
	defer a.swap.Unlock()
	fresh, asleep := from.transport, a.asleep.Load()
	forgotten := asleep != nil && from.takes&wire.TakesDetach == 0 // that producer would take it for mapped
	if a.shut || forgotten || a.judged.Load() {
		if a.gone || forgotten {
			fresh.TrySay(wire.Farewell{})
		}
		_ = errors.Join(fresh.Conn.Close(), from.process.Close())
		return nil
	}
	if w := t.fence.Watch; w != nil {
		a.keepWatch(w)
	}
	came, newer := fresh.Notices, serve.IsClosed(fresh.Superseded)
	fresh.Notices, fresh.Superseded = t.transport.Notices, t.transport.Superseded
	next := a.take(from)
	if asleep != nil {
		fresh.TrySay(asleep.says())
	}
	for len(came) > 0 {
		fresh.NoteNotice(<-came)
	}
	if newer {
		fresh.NoteSuperseded()
	}
	return next
}

// maxFormer is how many former producers are watched, for calls that wait for their fence.
const maxFormer = 2

// keepWatch goes on watching a former producer, in place of the oldest if there are maxFormer.
func (a *Attachment) keepWatch(w *serve.Watch) {
	if len(a.former) == maxFormer {
		a.former[0].Stop(serve.ErrTooManyProcesses)
		a.former = a.former[1:]
	}
	a.former = append(a.former, w)
}
