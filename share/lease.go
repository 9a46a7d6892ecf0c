package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
)

// A Lease is what one consumer holds of an offer, for its producer to watch and to
// take back. It begins when the consumer is admitted ([OnLease], [Server.Leases])
// and ends with the connection; nobody has to end it. It is safe for concurrent
// use.
type Lease struct {
	*offering
	link
	event  Event // what events of this lease have in common
	start  time.Time
	ctx    context.Context // until the lease is revoked or over, or the offer is
	cancel context.CancelCauseFunc
	letGo  time.Duration // how long the consumer may take to close legacy memory in the end
	sent   int           // records of the offer that the consumer was sent
	mapped bool          // the consumer has said so
	served bool          // the data was there for it

	done   chan struct{}
	reason error // why done is closed
}

func newLease(o *offering, l link, want attach, number int) *Lease {
	s := &Lease{offering: o, link: l, letGo: l.timeout, start: time.Now(), done: make(chan struct{}),
		event: Event{Lease: number, Peer: l.conn.Peer(), Access: o.gives(want)}}
	s.ctx, s.cancel = context.WithCancelCause(o.ctx)
	return s
}

// Number is the lease's number within its offer, from 1, which is [Event]'s too.
func (s *Lease) Number() int { return s.event.Lease }

// Peer is who holds the lease.
func (s *Lease) Peer() sock.Peer { return s.event.Peer }

// Access is what the consumer asked for and was admitted to; [ReadWrite] for legacy
// memory, whatever it asked for.
func (s *Lease) Access() cu.Access { return s.event.Access }

// Done is closed when the lease has ended, whoever ended it: the consumer has gone,
// died or given its verdict, took too long or broke the protocol, the lease was
// revoked, or the offer or the server has ended. A consumer that is told why, or to
// go, has a second to read that before; and where it was sent a legacy handle, as long
// as for any step ([WithTimeout]) to close the memory.
func (s *Lease) Done() <-chan struct{} { return s.done }

// Err says why the lease has ended, after Done: nil if by the consumer's will,
// [ErrRevoked], or what the event of its end says. Of legacy memory that the consumer
// may have open still, it matches [ErrStillOpen] as well.
func (s *Lease) Err() error {
	select {
	case <-s.done:
		return s.reason
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
func (s *Lease) Revoke() { s.cancel(ErrRevoked) }

// run serves a consumer that came when the offer was there.
func (s *Lease) run() {
	s.served = true
	s.begin()
	err := s.sendOffer(s.records, s.sendRecord)
	if err != nil {
		s.end(s.lost(err, false))
		return
	}
	s.tell(Sent, nil)
	s.end(s.follow())
}

// begin tells that the consumer was admitted. It is sent nothing before.
func (s *Lease) begin() {
	s.onLease(s)
	s.tell(Connected, nil)
}

// end is the last of a lease. err says why it ended against the consumer's or
// the application's will. The place of one that was not served, because it ended
// before the data was there, is another consumer's.
func (s *Lease) end(err error) {
	defer s.work.Done()
	s.forgetLease(s)
	s.cancel(nil)
	s.reason = err
	close(s.done)
	s.tell(Ended, err)
	s.server.mu.Lock()
	if s.served {
		s.ended++
	} else {
		s.begun--
	}
	s.server.mu.Unlock()
	s.moved()
}

func (s *Lease) tell(k EventKind, err error) {
	e := s.event
	e.Kind, e.Err, e.Since = k, err, time.Since(s.start)
	s.observe(e)
}

// sendOffer sends the description with all descriptors, as many to a record
// as it holds. After an error it can go on where it was. A handle of memory that was
// freed it does not give away: other memory may be opened by it.
func (s *Lease) sendOffer(records [][]byte, send sendFunc) error {
	if err := s.memory.vouch(); err != nil {
		return err
	}
	for ; s.sent < len(records); s.sent++ {
		if err := s.over(); err != nil {
			return err // not to be had any more
		}
		first := s.sent * sock.MaxFDs
		files := s.files[first:min(first+sock.MaxFDs, len(s.files))]
		if err := send(records[s.sent], files...); err != nil {
			return err
		}
	}
	return nil
}

// sendRecord waits until the record is sent.
func (s *Lease) sendRecord(record []byte, files ...*os.File) error {
	return s.link.sendRecord(s.ctx, record, files...)
}

// follow serves a consumer that has its descriptors until it goes.
func (s *Lease) follow() error {
	for {
		patient := s.mapped && !s.verdict
		m, rec, err := s.receive(s.ctx, patient)
		_ = rec.Close() // receive has seen to it that it holds nothing
		if err != nil {
			return s.lost(err, patient)
		}
		if over, err := s.hear(m); over {
			return err
		}
	}
}

// hear takes one message of the consumer, and says whether the lease is over.
func (s *Lease) hear(m message) (over bool, err error) {
	switch m := m.(type) {
	case progress:
		s.event.Done, s.event.Total = m.done, m.total
		s.tell(Progress, nil)
		return false, nil
	case mapped:
		if !s.mapped && m.generation == s.msg.desc.Generation {
			s.mapped = true
			s.tell(Mapped, nil)
			return s.confirm()
		}
	case verdict:
		if s.mapped || !m.ok { // one who has mapped nothing has found nothing good
			err := m.err()
			s.tell(Verdict, err)
			return true, err
		}
	}
	return true, s.refuse(unexpected(m, "from a consumer that was sent an offer"))
}

// confirm tells a consumer that has opened legacy memory that it is what was offered:
// the lease was there all the time, and so was the memory, unless somebody has freed
// it who does not know.
func (s *Lease) confirm() (over bool, err error) {
	if s.msg.legacy == nil {
		return false, nil
	}
	if err := s.memory.vouch(); err != nil {
		return true, s.lost(err, false)
	}
	if err := s.send(s.ctx, confirm{s.msg.desc.Generation}); err != nil {
		return true, s.lost(err, false)
	}
	return false, nil
}

// hearEarly takes what a consumer says before the data is there: only that it
// cannot attach belongs there.
func (s *Lease) hearEarly(m message) error {
	if v, ok := m.(verdict); ok && !v.ok {
		_, err := s.hear(v)
		return err
	}
	return s.refuse(unexpected(m, "from a consumer whose data is not there yet"))
}

// refuse tells the consumer what was wrong, unless that is its own refusal, after
// which nothing is said.
func (s *Lease) refuse(err error) error {
	if errors.Is(err, ErrRefused) {
		return join(err, s.sayLast(nil))
	}
	return join(err, s.sayLast(refusal(err)))
}

// join is errors.Join that leaves err as it is if there is nothing to add.
func join(err, more error) error {
	if more == nil {
		return err
	}
	return errors.Join(err, more)
}

// lost sorts out why no message came, or could be sent. A consumer that owed no
// verdict may simply go.
func (s *Lease) lost(err error, patient bool) error {
	switch cause := s.over(); {
	case cause != nil:
		open := s.sayLast(s.farewell())
		if !errors.Is(cause, ErrRevoked) {
			return join(fmt.Errorf("%w: %w", ErrRevoked, cause), open)
		}
		return join(ErrRevoked, open)
	case errors.Is(err, sock.ErrPeerLost) && patient:
		return nil
	case errors.Is(err, sock.ErrPeerLost) && s.verdict && s.served:
		return errors.Join(ErrNoVerdict, err)
	case errors.Is(err, sock.ErrPeerLost):
		return err
	case errors.Is(err, ErrMemoryGone):
		_ = s.part(revoke{"the memory is not there any more"})
		return err
	}
	return join(err, s.sayLast(refusal(err)))
}

// over is why the lease has ended on this side, or nil.
func (s *Lease) over() error {
	if err := s.ending(); err != nil {
		return err
	}
	return context.Cause(s.ctx)
}

// farewell says who has ended what.
func (s *Lease) farewell() revoke {
	if s.offering.over() == nil {
		return revoke{"the producer has taken this lease back"}
	}
	return revoke{"the producer has ended the offer"}
}

func (m verdict) err() error {
	if m.ok {
		return nil
	}
	return &VerdictError{m.text}
}

// Leases lists the leases of the offer of that name that have not ended, in the
// order of their numbers; also those of one that is prepared. Without such an offer
// there are none; nor of one that has ended, while its last leases still end.
func (s *Server) Leases(name string) []*Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.offers[name]
	if e := s.expected[name]; o == nil && e != nil {
		o = e.prepared
	}
	if o == nil {
		return nil
	}
	return slices.Clone(o.live)
}

// forgetLease takes one off the list.
func (o *offering) forgetLease(s *Lease) {
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	o.live = slices.DeleteFunc(o.live, func(l *Lease) bool { return l == s })
}
