package share

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpufd/gpufd/share/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// why sorts out why no message came, or could be sent. A consumer that is patiently
// waited for owes no verdict, and may go with a farewell.
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

// over is why the lease has ended on this side, or nil.
func (l *Lease) over() error {
	if err := l.offering.ending(); err != nil {
		return err
	}
	return context.Cause(l.ctx)
}

// end is the last of a lease. reason is why it ended against the consumer's or the
// application's will. The place of one that was not served, because it ended before
// the data was there, is another consumer's.
func (l *Lease) end(reason error) {
	o := l.offering
	defer o.work.Done()
	l.reason = join(reason, l.sayLast(reason))
	l.fence.released = l.transport.left || l.failed
	o.server.mu.Lock()
	o.live = slices.DeleteFunc(o.live, func(x *Lease) bool { return x == l })
	o.server.mu.Unlock()
	l.cancel(nil)
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

// sayLast tells the consumer why its lease ends, if it is there to be told. One that
// was sent a legacy handle may have the memory open: it keeps the connection until it
// has not, and is waited for as long as for any step. The error says that it did not
// come to that.
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

// lastWord is what the consumer is told of a lease's end: nil if nothing. told says
// that it knows, or is not there.
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
	case errors.Is(reason, ErrRefused): // to which nothing is said
		return nil, false
	case errors.Is(reason, ErrMemoryGone):
		return wire.Revoke{Text: "the memory is not there any more"}, false
	}
	return refusal(reason), false
}

// ErrStillOpen matches every [*StillOpenError].
var ErrStillOpen = errors.New("share: legacy memory may be open still")

// A StillOpenError says whose leases of legacy memory have ended and who did not say
// in time that they have closed it. To free it under them harms nobody else; what they
// find there then is undefined.
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
	return fmt.Sprintf("%v: it was not closed within %s by who had a lease of it (%s%s)", ErrStillOpen, e.After, peerNames(e.Peers), more)
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

// keepers are who had not closed legacy memory when their leases ended. An offer may go on
// for as long as the machine, so not all are named.
type keepers struct {
	peers []sock.Peer
	more  int
}

// maxKeepers is how many are.
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

// stillOpen says who had not closed legacy memory when their leases ended, or is nil.
func (o *offering) stillOpen() error {
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	if len(o.keepers.peers) == 0 {
		return nil
	}
	return &StillOpenError{o.keepers.peers, o.keepers.more, o.server.opts.timeout}
}
