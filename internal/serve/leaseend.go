package serve

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// why returns why the lease ends on this connection, where receiving or sending has failed with err;
// nil is that the consumer has left in order. heard says that receiving has, from a consumer that was
// told that its data is there. It is the reader's.
func (l *Lease) why(err error, heard bool) error {
	lost := errors.Is(err, sock.ErrPeerLost)
	err = l.fence.Lost(l.transport, l.session.want.Process, err)
	var died *sock.LostError
	switch {
	case lost && heard && l.mapped && !l.offering.opts.Verdict && !errors.As(err, &died):
		return nil
	case lost && l.offering.opts.Verdict && l.session.wasServed():
		return errors.Join(ErrNoVerdict, err)
	}
	return err
}

// over returns why this side has ended the lease, or nil.
func (l *Lease) over() error {
	l.offering.server.mu.Lock()
	defer l.offering.server.mu.Unlock()
	return l.endedHere(l.session.ended)
}

// endedHere returns the error of a lease that this side ends, or nil.
func (l *Lease) endedHere(why broker.Reason) error {
	switch why {
	case broker.Revoked:
		return RevokedError(wire.Revoke{Text: l.session.revoked})
	case broker.Superseded:
		return ErrSuperseded
	case broker.Withdrawn:
		return because(ErrWithdrawn, l.offering.ended())
	case broker.Restarting:
		return because(ErrRestarting, l.offering.ended())
	}
	return nil
}

// because returns an end's error with its cause, if that says more.
func because(end, cause error) error {
	if cause == nil || IsEnded(cause) {
		return end
	}
	return fmt.Errorf("%w: %w", end, cause)
}

// reasonOf returns why the lease has ended, for the application. err is the connection's.
func (l *Lease) reasonOf(ended broker.Reason, err error, heard bool) error {
	if ended == broker.Judged {
		return err
	}
	if end := l.endedHere(ended); end != nil {
		return end
	}
	return l.why(err, heard)
}

// end ends the lease. reason is nil if the consumer left in order.
func (l *Lease) end(reason error) {
	o, s := l.offering, l.offering.server
	defer o.work.Done()
	open := l.sayLast(reason)
	l.reason = join(reason, open)
	l.fence.Released = l.transport.Left || l.hasNothing() || l.Detached()
	l.noteAttached()
	s.mu.Lock()
	work := s.step(broker.Gone{Session: l.session.id, Sent: l.sent > 0, Released: l.fence.Released, Open: open != nil})
	s.keepWatching(l.session)
	s.mu.Unlock()
	DropCursors(l.cursors)
	close(l.done)
	l.fence.Settle()
	l.tell(Ended, l.reason)
	performAll(work) // not before
}

// hasNothing reports whether the consumer has said that it could not attach, and had not
// mapped the memory before it asked. It may say so just as the producer ends the lease.
func (l *Lease) hasNothing() bool {
	return l.session.want.Resume == 0 && (l.failed || !l.mapped && l.transport.declined)
}

// sayLast tells the consumer why its lease ends, if it is still there. A consumer that was
// sent a legacy handle keeps the connection until it has closed the memory; sayLast waits
// for that as long as for any step, and returns an error if it does not happen.
func (l *Lease) sayLast(reason error) error {
	if l.session.ended == broker.Judged {
		l.sayFarewell()
	}
	last, told := l.lastWord(reason)
	waits := l.offering.Record.Legacy != nil && l.sent > 0 && !errors.Is(reason, ErrMemoryGone)
	switch {
	case told, last == nil && !waits:
		return nil
	case !waits && l.isAskedToRelease(reason):
		l.closeWhenReleased(last)
		return nil
	case !waits:
		_ = l.transport.Close(last, l.transport.Farewell())
		return nil
	}
	if err := l.transport.Close(last, l.letGo); err == nil || errors.Is(err, sock.ErrPeerLost) {
		return nil
	}
	return &StillOpenError{Peers: []sock.Peer{l.Peer()}, After: l.letGo}
}

// lastWord returns what to tell the consumer of the lease's end, or nil. told says that
// the consumer knows already, or has gone.
func (l *Lease) lastWord(reason error) (last wire.Message, told bool) {
	switch {
	case reason == nil:
		return nil, true
	case IsEnded(reason):
		return l.revocation(), false
	case errors.Is(reason, ErrVerdict), errors.Is(reason, sock.ErrPeerLost):
		return nil, true
	case errors.Is(reason, ErrRefused): // a refusal gets no answer
		return nil, false
	case errors.Is(reason, ErrMemoryGone):
		return wire.Revoke{Text: "the memory is not there any more", Reason: wire.EndWithdrawn}, false
	}
	return Refusal(reason), false
}

// revocation returns what to tell the consumer of a lease that this side ends.
func (l *Lease) revocation() wire.Revoke {
	switch l.session.ended {
	case broker.Superseded:
		return wire.Revoke{Text: "the producer offers newer memory", Reason: wire.EndSuperseded}
	case broker.Revoked:
		return wire.Revoke{Text: l.session.revoked, Reason: wire.EndRevoked}
	case broker.Restarting:
		return wire.Revoke{Text: "the producer is restarting", Reason: wire.EndRestarting}
	}
	return wire.Revoke{Text: "the producer has ended the offer", Reason: wire.EndWithdrawn}
}

// ErrStillOpen matches every [*StillOpenError].
var ErrStillOpen = errors.New("share: a consumer may still have the legacy memory open")

// A StillOpenError names consumers that may still have legacy memory open: their leases
// have ended, and they did not say in time that they have closed it. Freeing the memory
// harms only them: what they find there then is undefined.
type StillOpenError struct {
	Peers []sock.Peer   // each once, 64 at most
	More  int           // leases of others
	After time.Duration // how long they had
}

// Error names the peers.
func (e *StillOpenError) Error() string {
	more := ""
	if e.More > 0 {
		more = fmt.Sprintf("; and %d more", e.More)
	}
	return fmt.Sprintf("%v: not closed within %s by %s%s; freeing it harms only those", ErrStillOpen, e.After, plain.List(e.Peers), more)
}

// Is matches [ErrStillOpen].
func (e *StillOpenError) Is(target error) bool { return target == ErrStillOpen }

// peersOf returns the peers that a broker names.
func peersOf(p broker.Peers) (all []sock.Peer) {
	for _, one := range p.List {
		all = append(all, sock.Peer(one))
	}
	return all
}
