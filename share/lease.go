package share

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/sock"
)

// A lease is one consumer's conversation with an offer.
type lease struct {
	*offering
	link
	event  Event // what events of this lease have in common
	start  time.Time
	sent   int  // records of the offer that the consumer was sent
	mapped bool // the consumer has said so
	served bool // the data was there for it
}

func newLease(o *offering, l link, want attach, number int) *lease {
	return &lease{offering: o, link: l, start: time.Now(),
		event: Event{Lease: number, Peer: l.conn.Peer(), Access: want.access}}
}

// run serves a consumer that came when the offer was there.
func (s *lease) run() {
	s.served = true
	s.tell(Connected, nil)
	err := s.sendOffer(s.records, s.sendRecord)
	if err != nil {
		s.end(s.lost(err, false))
		return
	}
	s.tell(Sent, nil)
	s.end(s.follow())
}

// end is the last of a lease. err says why it ended against the consumer's or
// the application's will. The place of one that was not served, because it ended
// before the data was there, is another consumer's.
func (s *lease) end(err error) {
	defer s.work.Done()
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

func (s *lease) tell(k EventKind, err error) {
	e := s.event
	e.Kind, e.Err, e.Since = k, err, time.Since(s.start)
	s.observe(e)
}

// sendOffer sends the description with all descriptors, as many to a record
// as it holds. After an error it can go on where it was.
func (s *lease) sendOffer(records [][]byte, send sendFunc) error {
	for ; s.sent < len(records); s.sent++ {
		first := s.sent * sock.MaxFDs
		files := s.files[first:min(first+sock.MaxFDs, len(s.files))]
		if err := send(records[s.sent], files...); err != nil {
			return err
		}
	}
	return nil
}

// sendRecord waits until the record is sent.
func (s *lease) sendRecord(record []byte, files ...*os.File) error {
	return s.link.sendRecord(s.offering.ctx, record, files...)
}

// follow serves a consumer that has its descriptors until it goes.
func (s *lease) follow() error {
	for {
		patient := s.mapped && !s.verdict
		m, rec, err := s.receive(s.offering.ctx, patient)
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

// hearEarly takes what a consumer says before the data is there: only that it
// cannot attach belongs there.
func (s *lease) hearEarly(m message) error {
	if v, ok := m.(verdict); ok && !v.ok {
		_, err := s.hear(v)
		return err
	}
	err := unexpected(m, "from a consumer whose data is not there yet")
	s.part(refusal(err))
	return err
}

// lost sorts out why no message came, or could be sent. A consumer that owed no
// verdict may simply go.
func (s *lease) lost(err error, patient bool) error {
	switch cause := s.over(); {
	case cause != nil:
		s.part(revoke{"the producer has ended the offer"})
		if !errors.Is(cause, ErrRevoked) {
			return fmt.Errorf("%w: %w", ErrRevoked, cause)
		}
		return ErrRevoked
	case errors.Is(err, sock.ErrPeerLost) && patient:
		return nil
	case errors.Is(err, sock.ErrPeerLost) && s.verdict && s.served:
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
