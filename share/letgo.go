package share

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpufd/gpufd/sock"
)

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

// sayLast ends the conversation, with m if that is not nil. A consumer that was sent a
// legacy handle may have the memory open: it keeps the connection until it has not, and
// is waited for as long as for any step. The error says that it did not come to that.
func (s *Lease) sayLast(m message) error {
	if s.msg.legacy == nil || s.sent == 0 {
		if m != nil {
			_ = s.part(m)
		}
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), s.letGo, ErrTimeout)
	defer cancel()
	if m != nil {
		_ = s.sendShortly(ctx, m) // who takes nothing may close all the same
	}
	if s.hasLetGo(ctx) {
		return nil
	}
	s.server.mu.Lock()
	s.keepers.add(s.Peer())
	s.server.mu.Unlock()
	return &StillOpenError{Peers: []sock.Peer{s.Peer()}, After: s.letGo}
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

// hasLetGo waits until the consumer has closed the connection, or has said a verdict,
// before which it closes the memory. What else it says is nothing, and may have crossed our
// last word; of that no more is read than of any consumer.
func (s *Lease) hasLetGo(ctx context.Context) bool {
	for s.meter.wait(ctx) == nil {
		m, rec, err := s.receive(ctx, true)
		_ = rec.Close() // receive has seen to it that it holds nothing
		switch {
		case err == nil:
		case isBadRecord(err):
			s.meter.allow(time.Now()) // counts, too, if it was none
		default:
			return errors.Is(err, sock.ErrPeerLost)
		}
		if _, ok := m.(verdict); ok {
			return true
		}
	}
	return false
}

// stillOpen says who had not closed legacy memory when their leases ended, or is nil.
func (o *offering) stillOpen() error {
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	if len(o.keepers.peers) == 0 {
		return nil
	}
	return &StillOpenError{o.keepers.peers, o.keepers.more, o.server.timeout}
}
