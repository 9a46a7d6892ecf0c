package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// A Lease is what one consumer holds of an offer, for its producer to watch and to
// take back. It begins when the consumer is admitted ([OnLease], [Server.Leases])
// and ends with the connection; nobody has to end it. It is safe for concurrent
// use. The zero Lease has ended.
type Lease struct {
	offering  *offering
	transport *transport
	event     Event // what events of this lease have in common
	start     time.Time
	ctx       context.Context // until the lease is revoked or over, or the offer is
	cancel    context.CancelCauseFunc
	resume    uint64        // the generation that the consumer has mapped already, or 0
	letGo     time.Duration // how long the consumer may take to close legacy memory in the end

	// The lease's goroutine's alone:
	state  leaseState
	sent   int  // records of the offer
	whole  bool // all of them were sent
	failed bool // the consumer could not attach: it has nothing mapped

	done   chan struct{}
	reason error // why done is closed
	fence  *fence
	says   wire.Process // the consumer, of its own
}

// A leaseState says how far a lease is. It ends from any of them.
type leaseState int

const (
	leaseAdmitted leaseState = iota // the consumer was sent nothing, or not all
	leaseSent                       // it was sent the descriptors, and the data is not there
	leaseServed                     // the data is there for it, and it is sent the descriptors
	leaseMapped                     // it has mapped the memory
)

// newLease runs with the server's mu held.
func newLease(o *offering, v *visitor) *Lease {
	t, peer := v.transport, v.transport.conn.Peer()
	l := &Lease{offering: o, transport: t, resume: v.want.Resume, letGo: t.timeout, start: time.Now(), done: make(chan struct{}), says: v.want.Process,
		event: Event{Lease: o.numbered, Peer: peer, Access: o.gives(v.want)}}
	l.fence = newFence(peer, l.says, v.watch, v.unwatched, l.done)
	if v.watch != nil {
		v.watch.leased.Store(true)
	}
	l.ctx, l.cancel = context.WithCancelCause(o.ctx)
	return l
}

// Number is the lease's number within its offer, from 1, which is [Event]'s too.
func (l *Lease) Number() int {
	if l == nil {
		return 0
	}
	return l.event.Lease
}

// Peer is who holds the lease.
func (l *Lease) Peer() sock.Peer {
	if l == nil {
		return sock.Peer{}
	}
	return l.event.Peer
}

// Process returns the process that holds the lease, for who waits for its end longer than
// the server lives ([sock.Process.File]). The caller owns it. ErrNoProcess of package sock
// where it is not known.
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

// Access is what the consumer asked for and was admitted to; [ReadWrite] for legacy
// memory, whatever it asked for.
func (l *Lease) Access() cu.Access {
	if l == nil {
		return 0
	}
	return l.event.Access
}

// Done is closed when the lease has ended, whoever ended it: the consumer has gone,
// died or given its verdict, took too long or broke the protocol, the lease was
// revoked, or the offer or the server has ended. A consumer that is told why, or to
// go, has a second to read that before; where it was sent a legacy handle, as long
// as for any step ([WithTimeout]) to close the memory; and where the offer waits until it
// has released the memory ([WithFence]), until it has, or is not waited for any longer.
func (l *Lease) Done() <-chan struct{} {
	if l.isZero() {
		return closed
	}
	return l.done
}

// isZero reports whether there is no lease: everything of it is [ErrClosed].
func (l *Lease) isZero() bool { return l == nil || l.offering == nil }

// Err says why the lease has ended, after Done: nil if by the consumer's will, which has
// closed its attachment; a [*LostError] if the consumer was killed or has just gone;
// [ErrRevoked]; or what the event of its end says. Of a consumer that is older than this it
// is nil also if it was killed. Of legacy memory that the consumer may have open still, it
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

// Revoke takes this lease back: the consumer is told, its [Attachment.Done] ends
// with [ErrRevoked], or its Attach fails with it, and it is disconnected. The offer
// and its other leases go on. Revoke does not wait ([Lease.Done] does); after the
// lease's end it does nothing.
//
// The consumer keeps the descriptors that it was sent and what it has mapped: nobody
// can take them back. Legacy memory it is asked to close, and the lease ends when it has,
// or with [ErrStillOpen]. It may attach again. Its place among [WithLeases] is used up if
// its data was there already, and another's if not.
func (l *Lease) Revoke() {
	if !l.isZero() {
		l.cancel(ErrRevoked)
	}
}

// run serves a consumer that came when the data was there.
func (l *Lease) run() {
	l.state = leaseServed
	l.begin()
	if err := l.sendOffer(l.offering.recordsFor(l.resume, false), l.sendRecord); err != nil {
		l.end(l.why(err, false))
		return
	}
	l.tell(Sent, nil)
	l.end(l.follow())
}

// begin tells that the consumer was admitted. It is sent nothing before.
func (l *Lease) begin() {
	l.offering.opts.onLease(l)
	l.tell(Connected, nil)
}

func (l *Lease) tell(k EventKind, err error) {
	e := l.event
	e.Kind, e.Err, e.Since = k, err, time.Since(l.start)
	l.offering.opts.onEvent(e)
}

// sendOffer sends the description with all descriptors, as many to a record
// as it holds. After an error it can go on where it was. A handle of memory that was
// freed it does not give away: other memory may be opened by it.
func (l *Lease) sendOffer(records []parcel, send sendFunc) error {
	if err := l.offering.source.vouch(); err != nil {
		return err
	}
	for ; l.sent < len(records); l.sent++ {
		if err := l.over(); err != nil {
			return err // not to be had any more
		}
		if err := send(records[l.sent].record, records[l.sent].files...); err != nil {
			return err
		}
	}
	l.whole = true
	return nil
}

// sendRecord waits until the record is sent.
func (l *Lease) sendRecord(record []byte, files ...*os.File) error {
	return l.transport.sendRecord(l.ctx, record, files...)
}

// follow serves a consumer that has its descriptors until it goes. The error is why
// the lease ends, if not by the consumer's will.
func (l *Lease) follow() error {
	for {
		patient := l.state == leaseMapped && !l.offering.opts.verdict
		m, files, err := l.transport.receive(l.ctx, patient)
		_ = sock.CloseFiles(files)
		if err != nil {
			return l.why(err, patient)
		}
		if over, err := l.hear(m); over {
			return err
		}
	}
}

// hear takes one message of the consumer, and says whether the lease is over, and why.
func (l *Lease) hear(m wire.Message) (over bool, err error) {
	switch m := m.(type) {
	case wire.Progress:
		l.event.Done, l.event.Total = m.Done, m.Total
		l.tell(Progress, nil)
		return false, nil
	case wire.Mapped:
		if l.state != leaseMapped && m.Generation == l.offering.record.Memory.Generation {
			l.state = leaseMapped
			l.tell(Mapped, nil)
			err := l.confirm()
			return err != nil, err
		}
	case wire.Verdict:
		if l.state == leaseMapped || !m.OK { // one who has mapped nothing has found nothing good
			l.failed = l.state != leaseMapped
			err := faultOf(m)
			l.tell(Verdict, err)
			l.sayFarewell()
			return true, err
		}
	}
	return true, unexpected(m, "from a consumer that was sent an offer")
}

// hearEarly takes what a consumer says before the data is there: only that it
// cannot attach belongs there.
func (l *Lease) hearEarly(m wire.Message) error {
	if v, ok := m.(wire.Verdict); ok && !v.OK {
		_, err := l.hear(v)
		return err
	}
	return unexpected(m, "from a consumer whose data is not there yet")
}

// confirm tells a consumer that has opened legacy memory that it is what was offered:
// the lease was there all the time, and so was the memory, unless somebody has freed
// it who does not know.
func (l *Lease) confirm() error {
	r := l.offering.record
	if r.Legacy == nil {
		return nil
	}
	err := l.offering.source.vouch()
	if err == nil {
		err = l.transport.send(l.ctx, wire.Confirm{Generation: r.Memory.Generation})
	}
	if err != nil {
		return l.why(err, false)
	}
	return nil
}

func faultOf(v wire.Verdict) error {
	if v.OK {
		return nil
	}
	return &VerdictError{v.Text}
}
