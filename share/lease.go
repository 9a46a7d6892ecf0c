package share

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// A Lease is one consumer's hold on an offer, which its producer can watch and take
// back. It begins when the consumer is admitted ([OnLease], [Server.Leases]) and ends
// with the connection; it need not be closed. It is safe for concurrent use. The zero
// Lease has ended.
type Lease struct {
	session   *session
	offering  *offering
	transport *transport
	event     Event // the fields that all events of this lease share
	start     time.Time
	letGo     time.Duration // how long the consumer may take to close legacy memory in the end

	// The goroutine's that performs the outbox:
	begun bool // the application knows of it
	sent  int  // records of the offer
	whole bool // all of them were sent
	told  bool // the application knows that the memory is mapped

	// The reader's:
	mapped bool // the consumer has mapped the memory
	failed bool // the consumer could not attach: it has nothing mapped

	cursors *os.File // memory of this lease alone, or nil
	refused error    // why the application turns the consumer away, or nil

	done   chan struct{}
	reason error // why done is closed
	fence  *fence
}

// newLease runs with the server's mu held.
func newLease(o *offering, x *session, number int) *Lease {
	t, peer := x.transport, x.transport.conn.Peer()
	l := &Lease{session: x, offering: o, transport: t, letGo: t.timeout, start: time.Now(), done: make(chan struct{}),
		event: Event{Lease: number, Peer: peer, Access: o.gives(x.want)}}
	l.fence = newFence(peer, x.want.Process, x.watch, x.unwatched, l.done)
	if x.watch != nil {
		x.watch.leased.Store(true)
	}
	o.work.Add(1)
	return l
}

// Number returns the lease's number within its offer, from 1, as in [Event].
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

// Process returns the process that holds the lease, to wait for its end even after the
// server has closed ([sock.Process.File]). The caller owns it. The error is
// [sock.ErrNoProcess] if the process is not known.
func (l *Lease) Process() (*sock.Process, error) {
	if l.isZero() {
		return nil, ErrClosed
	}
	if l.fence.watch == nil {
		return nil, fmt.Errorf("%w: %w", sock.ErrNoProcess, l.fence.unknown)
	}
	f, err := l.fence.watch.process.File()
	if err != nil {
		return nil, err
	}
	p, err := sock.ProcessOf(f)
	return p, errors.Join(err, f.Close())
}

// Access returns the access that the consumer asked for and got; always [ReadWrite] for
// legacy memory.
func (l *Lease) Access() gpumem.Access {
	if l == nil {
		return 0
	}
	return l.event.Access
}

// Done returns a channel that is closed when the lease has ended: the consumer has gone,
// died or given its verdict, took too long or broke the protocol; the lease was revoked;
// or the offer or the server has ended. A consumer that is told to go first has a second
// to read that. One that was sent a legacy handle has as long as for any step
// ([WithTimeout]) to close the memory. If the offer waits until the consumer has released
// the memory ([WithFence]), the lease lasts until it has, or until that wait is over.
func (l *Lease) Done() <-chan struct{} {
	if l.isZero() {
		return closed
	}
	return l.done
}

// isZero reports whether l is nil or zero: its methods fail with [ErrClosed].
func (l *Lease) isZero() bool { return l == nil || l.offering == nil }

// Err returns why the lease has ended, after Done: nil if the consumer has closed its
// attachment; a [*LostError] if it was killed or went without a farewell; [ErrRevoked]; or
// the error of the Ended event. For a consumer that is older than farewells, it is nil even
// if the consumer was killed. If the consumer may still have legacy memory open, the error
// matches [ErrStillOpen] as well.
func (l *Lease) Err() error {
	if l.isZero() {
		return ErrClosed
	}
	select {
	case <-l.done:
		return l.reason
	default:
		return nil
	}
}

// Revoke takes this lease back: the consumer is told and disconnected, and its
// attachment, or its Attach, ends with [ErrRevoked]. The offer and its other leases go on.
// Revoke does not wait ([Lease.Done] does); after the lease's end it does nothing.
//
// The consumer keeps its descriptors and its mappings: nobody can take them back. It is
// asked to close legacy memory, and the lease ends when it has, or with [ErrStillOpen].
// The consumer may attach again. If its data was there already, the lease still counts for
// [WithLeases].
func (l *Lease) Revoke() {
	if !l.isZero() {
		l.offering.server.bring(broker.Revoke{Session: l.session.id}, nil)
	}
}

// begin tells the application that the consumer was admitted, before it is sent anything.
func (l *Lease) begin() {
	l.offering.opts.onLease(l)
	l.tell(Connected, nil)
	l.beginCursors()
}

func (l *Lease) tell(k EventKind, err error) {
	e := l.event
	e.Kind, e.Err, e.Since = k, err, time.Since(l.start)
	l.offering.opts.onEvent(e)
}

// sendOffer sends the description with all descriptors, as many per record as fit. After
// an error, the next call goes on where this one stopped. It does not send a handle of
// freed memory, which may open other memory by now.
func (l *Lease) sendOffer(pending bool, send sendFunc) error {
	if err := errors.Join(l.offering.source.vouch(), l.refused); err != nil {
		return err
	}
	records := l.withCursors(l.offering.recordsFor(l.session.want.Resume, pending))
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
		l.tell(Mapped, nil)
	}
	r := l.offering.record
	if r.Legacy == nil {
		return nil
	}
	if err := l.offering.source.vouch(); err != nil {
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
