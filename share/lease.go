package share

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/sock"
)

// A lease is one consumer's conversation with an offer.
type lease struct {
	*offering
	link
	event  Event // what events of this lease have in common
	start  time.Time
	early  *earlyReader // of a consumer that waited for the offer, or nil
	mapped bool         // the consumer has said so
}

// follow serves one admitted consumer to its end.
func (o *offering) follow(l link, want attach, number int, early *earlyReader) {
	defer o.work.Done()
	s := lease{offering: o, link: l, start: time.Now(), early: early,
		event: Event{Lease: number, Peer: l.conn.Peer(), Access: want.access}}
	s.tell(Connected, nil)
	err := s.run()
	s.tell(Ended, err)
	o.server.mu.Lock()
	o.ended++
	o.server.mu.Unlock()
	o.moved()
}

func (s *lease) tell(k EventKind, err error) {
	e := s.event
	e.Kind, e.Err, e.Since = k, err, time.Since(s.start)
	s.observe(e)
}

// run sends the offer and follows the consumer until it goes. The error says
// why the lease ended against the consumer's or the application's will.
func (s *lease) run() error {
	if err := s.sendOffer(); err != nil {
		s.early.close()
		return s.lost(err, false)
	}
	s.tell(Sent, nil)
	for {
		patient := s.mapped && !s.verdict
		m, rec, err := s.next(s.offering.ctx, patient)
		if err != nil {
			return s.lost(err, patient)
		}
		_ = rec.Close() // receive has seen to it that it holds nothing
		if over, err := s.hear(m); over {
			return err
		}
	}
}

// next is receive, but what a consumer says first that waited for the offer
// comes from the reader that it waited with: to stop that one and read anew
// would take time while the descriptors are on their way.
func (s *lease) next(ctx context.Context, patient bool) (message, sock.Record, error) {
	early := s.early
	if s.early = nil; early == nil {
		return s.receive(ctx, patient)
	}
	return early.take(ctx, s.timeout)
}

// hear takes one message of the consumer, and says whether the lease is over.
func (s *lease) hear(m message) (over bool, err error) {
	switch m := m.(type) {
	case progress:
		s.event.Done, s.event.Total = m.done, m.total
		s.tell(Progress, nil)
		return false, nil
	case mapped:
		if !s.mapped && m.generation == s.msg.desc.Generation {
			s.mapped = true
			s.tell(Mapped, nil)
			return false, nil
		}
	case verdict:
		if s.mapped || !m.ok { // one who has mapped nothing has found nothing good
			err := m.err()
			s.tell(Verdict, err)
			return true, err
		}
	}
	err = unexpected(m, "from a consumer that was sent an offer")
	s.part(refusal(err))
	return true, err
}

// sendOffer sends the description with all descriptors, as many to a record
// as it holds.
func (s *lease) sendOffer() error {
	m := s.msg
	for m.first = 0; m.first < len(s.files); m.first += m.fds {
		m.fds = min(sock.MaxFDs, len(s.files)-m.first)
		if err := s.send(s.offering.ctx, m, s.files[m.first:m.first+m.fds]...); err != nil {
			return err
		}
	}
	return nil
}

// lost sorts out why no message came, or could be sent. A consumer that owed no
// verdict may simply go.
func (s *lease) lost(err error, patient bool) error {
	switch {
	case s.offering.ctx.Err() != nil:
		s.part(revoke{"the producer has ended the offer"})
		if cause := context.Cause(s.offering.ctx); !errors.Is(cause, ErrRevoked) {
			return fmt.Errorf("%w: %w", ErrRevoked, cause)
		}
		return ErrRevoked
	case errors.Is(err, sock.ErrPeerLost) && patient:
		return nil
	case errors.Is(err, sock.ErrPeerLost) && s.verdict:
		return errors.Join(ErrNoVerdict, err)
	case errors.Is(err, sock.ErrPeerLost):
		return err
	}
	s.part(refusal(err))
	return err
}

func (m verdict) err() error {
	if m.ok {
		return nil
	}
	return &VerdictError{m.text}
}
