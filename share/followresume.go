package share

import (
	"context"
	"errors"
	"time"

	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// When the lease of an attachment of [Follow] has ended, it takes another lease of the same
// memory, from the producer's successor or from the producer when it is back. Its user does
// not notice: Err is nil even while there is no lease.

// WithoutLease bounds how long an attachment of [Follow] stays without a lease after its
// producer was lost, until a producer offers the same memory again. The default is
// [DefaultTimeout]; with 0 the attachment's Context ends with the lease. [Attach] ignores
// this option.
func WithoutLease(d time.Duration) AttachOption {
	return attachOption(func(o *attachOptions) { o.leaseless = d })
}

// errTakenBack says that the producer that took the lease back is there still.
var errTakenBack = errors.New("share: the producer has taken the lease back and goes on")

// isOver reports whether no other lease can follow t, which has ended. A lease with memory
// of its own ([WithCursors]) is the last.
func (a *Attachment) isOver(t *leaseConn) bool {
	return !a.opts.follows || a.opts.leaseless == 0 || a.cursors != nil || t.keeps || a.judged.Load() || serve.IsClosed(t.transport.Superseded) ||
		!errors.Is(t.reason, ErrRevoked) && !errors.Is(t.reason, sock.ErrPeerLost)
}

// mayResume reports whether to take another lease of the memory.
func (a *Attachment) mayResume(t *leaseConn) bool { return a.open.Err() == nil && !a.isOver(t) }

// another takes another lease. It returns nil if there is none in time, if the name stands
// for other memory, or if the attachment is closed. If a producer ended its offer in order,
// its successor is there already, or there is none.
func (a *Attachment) another(t *leaseConn) *leaseConn {
	ctx, cancel := context.WithTimeout(a.more, a.opts.leaseless)
	defer cancel()
	for pause := followMin; ; pause = min(2*pause, followMax) {
		from := a.resuming()
		from.opts.quiet()
		if errors.Is(t.reason, ErrRevoked) {
			from.behind = t
		}
		err := from.lease(ctx)
		if err == nil {
			return a.change(t, from)
		}
		if !retryable(err) || from.behind != nil && isNobody(err) {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// isNobody reports whether err says that nobody offers the name.
func isNobody(err error) bool {
	var no *RefusalError
	return errors.Is(err, sock.ErrNoListener) || errors.As(err, &no) && no.Code == RefusedName
}

// change makes the new lease of from the attachment's, after t, unless the attachment was
// closed or a verdict was given meanwhile. Notices go on in the same channel; those from the
// new connection come after Offer returns the new producer.
func (a *Attachment) change(t *leaseConn, from *attaching) *leaseConn {
	a.swap.Lock()
	defer a.swap.Unlock()
	fresh := from.transport
	if a.shut || a.judged.Load() {
		if a.gone {
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

// isOf reports whether t, which may be nil, is a lease of that producer.
func (t *leaseConn) isOf(peer sock.Peer, p *sock.Process) bool {
	if t == nil {
		return false
	}
	if w := t.fence.Watch; w != nil && w.Process.ID() != "" && p.ID() != "" {
		return w.Process.ID() == p.ID()
	}
	return peer.PID != 0 && peer.PID == t.offer.Producer.PID
}
