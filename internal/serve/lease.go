package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// A Lease is one consumer's hold on an offer, which its producer can watch and take back.
type Lease struct {
	session   *session
	offering  *Offering
	transport *Transport
	event     Event // the fields that all events of this lease share
	start     time.Time
	letGo     time.Duration // how long the consumer may take to close legacy memory in the end

	// Used by the goroutine that performs the outbox:
	begun bool // the application knows of it
	sent  int  // records of the offer
	whole bool // all of them were sent
	told  bool // the application knows that the memory is mapped

	// The reader's:
	mapped bool // the consumer has mapped the memory
	failed bool // the consumer could not attach: it has nothing mapped

	attaching bool // counts among those that Settle waits for; under server.mu

	cursors *os.File // memory of this lease alone, or nil
	refused error    // why the application turns the consumer away, or nil

	detached atomic.Bool // the consumer has unmapped the memory, and keeps its lease

	done   chan struct{}
	reason error // why done is closed
	fence  *PeerFence
}

// newLease runs with the server's mu held.
func newLease(o *Offering, x *session, number int) *Lease {
	t, peer := x.transport, x.transport.Conn.Peer()
	l := &Lease{session: x, offering: o, transport: t, letGo: t.Timeout, start: time.Now(), done: make(chan struct{}),
		event: Event{Lease: number, Peer: peer, Access: o.gives(x.want)}}
	l.fence = NewPeerFence(peer, x.want.Process, x.watch, x.unwatched, l.done)
	if o.unknown == nil {
		o.unknown = l.fence.unknown
	}
	if x.watch != nil {
		x.watch.leased.Store(true)
	}
	o.work.Add(1)
	return l
}

// Times returns how long the lease waits for a step, for a consumer to read its last record, and for one
// to close legacy memory. Tests shorten them.
func (l *Lease) Times() (step, goodbye, letGo *time.Duration) {
	return &l.transport.Timeout, &l.transport.Goodbye, &l.letGo
}

// Number returns the lease's number within its offer, from 1, as in Event.
func (l *Lease) Number() int {
	if l == nil {
		return 0
	}
	return l.event.Lease
}

// Peer returns the consumer that holds the lease.
func (l *Lease) Peer() sock.Peer {
	if l == nil {
		return sock.Peer{}
	}
	return l.event.Peer
}

// Process returns the process that holds the lease, to wait for its end even after the server has closed
// (sock.Process.File).
func (l *Lease) Process() (*sock.Process, error) {
	if l.isZero() {
		return nil, errNoLease
	}
	if l.fence.Watch == nil {
		return nil, fmt.Errorf("%w: %w", sock.ErrNoProcess, l.fence.unknown)
	}
	f, err := l.fence.Watch.Process.File()
	if err != nil {
		return nil, err
	}
	p, err := sock.ProcessOf(f)
	return p, errors.Join(err, f.Close())
}

// Access returns the access that the consumer asked for and got.
func (l *Lease) Access() gpumem.Access {
	if l == nil {
		return 0
	}
	return l.event.Access
}

// Done returns a channel that is closed when the lease has ended.
func (l *Lease) Done() <-chan struct{} {
	if l.isZero() {
		return Closed
	}
	return l.done
}

// isZero reports whether l is nil or zero: its methods fail with [ErrClosed].
func (l *Lease) isZero() bool { return l == nil || l.offering == nil }

// Err returns why the lease has ended, after Done.
func (l *Lease) Err() error {
	if l.isZero() {
		return errNoLease
	}
	select {
	case <-l.done:
		return l.reason
	default:
		return nil
	}
}

// Revoke takes this lease back, and says why.
func (l *Lease) Revoke(reason string) {
	if l.isZero() {
		return
	}
	s := l.offering.server
	s.mu.Lock()
	if l.session.ended == 0 {
		l.session.revoked = reason
	}
	work := s.step(broker.Revoke{Session: l.session.id})
	s.mu.Unlock()
	performAll(work)
}

// Released reports whether the lease has ended and the consumer does not use the memory any more.
func (l *Lease) Released() bool { return l.AwaitFence(done, fence.Released) == nil }

// done is a context that has ended.
var done = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// begin tells the application that the consumer was admitted, before it is sent anything.
func (l *Lease) begin() {
	l.offering.opts.OnLease(l)
	l.tell(Connected, nil)
	l.beginCursors()
}

func (l *Lease) tell(k EventKind, err error) {
	e := l.event
	e.Kind, e.Err, e.Since = k, err, time.Since(l.start)
	l.offering.opts.OnEvent(e)
}

// sendOffer sends the description with all descriptors, as many per record as fit. After
// an error, the next call goes on where this one stopped. It does not send a handle of
// freed memory, which may open other memory by now.
func (l *Lease) sendOffer(pending bool, send sendFunc) error {
	if err := errors.Join(l.offering.source.Vouch(), l.refused); err != nil {
		return err
	}
	records, err := l.offering.recordsFor(l.session.want.Resume, pending)
	if err != nil {
		return err
	}
	records = l.withCursors(records)
	for ; l.sent < len(records); l.sent++ {
		if err := l.over(); err != nil {
			return err // the offer or the lease has ended
		}
		if err := send(records[l.sent].record, records[l.sent].files...); err != nil {
			return err
		}
	}
	l.whole = true
	return nil
}

// confirm tells the application, once, that the memory is mapped, and the consumer of legacy memory
// that it has opened what was offered. The lease has kept the memory, unless somebody has freed it
// who does not know of leases.
func (l *Lease) confirm(send sendFunc) error {
	if !l.told {
		l.told = true
		l.noteAttached()
		l.tell(Mapped, nil)
	}
	r := l.offering.Record
	if r.Legacy == nil {
		return nil
	}
	if err := l.offering.source.Vouch(); err != nil {
		return err
	}
	return send(wire.Encode(wire.Confirm{Generation: r.Memory.Generation}))
}

func faultOf(v wire.Verdict) error {
	if v.OK {
		return nil
	}
	return &VerdictError{v.Text}
}
