package share

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// why returns why the lease ends after receiving or sending failed with err. If patient,
// the consumer owes no verdict and may leave with a farewell.
func (l *Lease) why(err error, patient bool) error {
	cause, lost := l.over(), errors.Is(err, sock.ErrPeerLost)
	err = l.fence.lost(l.transport, l.says, err)
	var died *LostError
	switch {
	case errors.Is(cause, ErrRevoked):
		return ErrRevoked
	case cause != nil:
		return fmt.Errorf("%w: %w", ErrRevoked, cause)
	case lost && patient && !errors.As(err, &died):
		return nil
	case lost && l.offering.opts.verdict && l.state >= leaseServed:
		return errors.Join(ErrNoVerdict, err)
	}
	return err
}

// over returns why this side has ended the lease, or nil.
func (l *Lease) over() error {
	if err := l.offering.ending(); err != nil {
		return err
	}
	return context.Cause(l.ctx)
}

// end ends the lease. reason is nil if the consumer left in order. A lease that ended
// before the data was there leaves its place to another consumer.
func (l *Lease) end(reason error) {
	o := l.offering
	defer o.work.Done()
	l.reason = join(reason, l.sayLast(reason))
	l.fence.released = l.transport.left || l.hasNothing()
	o.server.mu.Lock()
	o.live = slices.DeleteFunc(o.live, func(x *Lease) bool { return x == l })
	o.server.mu.Unlock()
	l.cancel(nil)
	dropCursors(l.cursors)
	close(l.done)
	l.fence.settle()
	o.fenceOff(l)
	l.tell(Ended, l.reason)
	o.server.mu.Lock()
	if l.state >= leaseServed {
		o.ended++
	} else {
		o.begun--
	}
	o.server.mu.Unlock()
	o.moved()
}

// hasNothing reports whether the consumer has said that it could not attach, and had not
// mapped the memory before it asked. It may say so just as the producer ends the lease.
func (l *Lease) hasNothing() bool {
	return l.resume == 0 && (l.failed || l.state != leaseMapped && l.transport.declined)
}

// sayLast tells the consumer why its lease ends, if it is still there. A consumer that was
// sent a legacy handle keeps the connection until it has closed the memory; sayLast waits
// for that as long as for any step, and returns an error if it does not happen.
func (l *Lease) sayLast(reason error) error {
	last, told := l.lastWord(reason)
	waits := l.offering.record.Legacy != nil && l.sent > 0 && !errors.Is(reason, ErrMemoryGone)
	switch {
	case told, last == nil && !waits:
		return nil
	case !waits && l.isAskedToRelease(reason):
		l.closeWhenReleased(last)
		return nil
	case !waits:
		_ = l.transport.close(last, l.transport.farewell())
		return nil
	}
	if err := l.transport.close(last, l.letGo); err == nil || errors.Is(err, sock.ErrPeerLost) {
		return nil
	}
	l.offering.server.mu.Lock()
	l.offering.keepers.add(l.Peer())
	l.offering.server.mu.Unlock()
	return &StillOpenError{Peers: []sock.Peer{l.Peer()}, After: l.letGo}
}

// lastWord returns what to tell the consumer of the lease's end, or nil. told says that
// the consumer knows already, or has gone.
func (l *Lease) lastWord(reason error) (last wire.Message, told bool) {
	switch {
	case reason == nil:
		return nil, true
	case errors.Is(reason, ErrRevoked):
		if l.offering.over() == nil {
			return wire.Revoke{Text: "the producer has taken this lease back"}, false
		}
		return wire.Revoke{Text: "the producer has ended the offer"}, false
	case errors.Is(reason, ErrVerdict), errors.Is(reason, sock.ErrPeerLost):
		return nil, true
	case errors.Is(reason, ErrRefused): // a refusal gets no answer
		return nil, false
	case errors.Is(reason, ErrMemoryGone):
		return wire.Revoke{Text: "the memory is not there any more"}, false
	}
	return refusal(reason), false
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
	return fmt.Sprintf("%v: not closed within %s by %s%s; freeing it harms only those", ErrStillOpen, e.After, peerNames(e.Peers), more)
}

// Is matches [ErrStillOpen].
func (e *StillOpenError) Is(target error) bool { return target == ErrStillOpen }

func peerNames(peers []sock.Peer) string {
	names := make([]string, len(peers))
	for i, p := range peers {
		names[i] = p.String()
	}
	return strings.Join(names, "; ")
}

// keepers are the consumers that had not closed legacy memory when their leases ended. An
// offer may go on for as long as the machine, so only maxKeepers are named.
type keepers struct {
	peers []sock.Peer
	more  int
}

// maxKeepers bounds the named peers of keepers.
const maxKeepers = 64

func (k *keepers) add(p sock.Peer) {
	switch {
	case slices.Contains(k.peers, p):
	case len(k.peers) == maxKeepers:
		k.more++
	default:
		k.peers = append(k.peers, p)
	}
}

// stillOpen names the consumers that had not closed legacy memory when their leases ended;
// it returns nil if there are none.
func (o *offering) stillOpen() error {
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	if len(o.keepers.peers) == 0 {
		return nil
	}
	return &StillOpenError{o.keepers.peers, o.keepers.more, o.server.opts.timeout}
}
