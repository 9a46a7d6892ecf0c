package main

import (
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/sock"
)

// consume takes what is offered on descriptor 3 until that ends.
func consume(o *options, _ []string) error {
	s, err := o.open()
	if err == nil {
		s.link, err = newLink(o, 3)
	}
	if s.link == nil {
		return err
	}
	if said := s.link.send(text(err), nil); said != nil {
		return said
	}
	for err == nil {
		err = s.answer()
	}
	if isEnd(err) {
		err = nil
	}
	return errors.Join(err, s.kept.close(), s.ctx.Close())
}

func isEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, sock.ErrPeerLost) }

// answer takes one message.
func (s *side) answer() error {
	data, came, err := s.link.receive()
	if isEnd(err) && s.home != nil { // the producer has given up
		return s.part()
	}
	if err != nil {
		return err
	}
	st := steps{side: "consumer", all: make([]rival.Step, 0, mostSteps)}
	st.took("receive", rival.Now())
	msg, err := decodeOffer(data)
	if err != nil {
		return errors.Join(err, came.close())
	}
	if msg.chunks == 0 {
		return s.nudged(came)
	}
	if msg.chunks != 1 || !came.came() {
		return errors.New("an offer of other than one chunk with its descriptor")
	}
	return errors.Join(s.attach(msg.size, came, &st), s.part())
}

// nudged is woken for an offer, which is made on the connection that came, if one
// did.
func (s *side) nudged(came descriptor) error {
	if came.came() {
		fd, err := duplicate(came)
		if err = errors.Join(err, came.close()); err != nil {
			return err
		}
		if err := s.meet(fd); err != nil {
			return err
		}
	}
	s.link.begin()
	return s.link.send(text(s.rehearse()), nil)
}

// attach maps what came, acknowledges, and reports.
func (s *side) attach(size uint64, came descriptor, st *steps) error {
	if err := s.keep(size, came); err != nil {
		return err
	}
	m, err := s.take(size, came, st, func() error {
		from := rival.Now()
		err := s.link.send(text(nil), nil)
		st.took("ack", from)
		return err
	})
	if err != nil {
		return s.link.send(text(err), nil)
	}
	var r report
	r.salts, r.err = s.read(m, size)
	from := rival.Now()
	r.err = errors.Join(r.err, m.close())
	st.took("unmap", from)
	r.steps = st.all
	return s.link.send(r.encode(), nil)
}

// keep keeps the first memory that comes, to rehearse with it.
func (s *side) keep(size uint64, came descriptor) error {
	if !s.rehearsed || s.kept.came() {
		return nil
	}
	fd, err := duplicate(came)
	s.kept, s.keptSize = descriptor{number: fd}, size
	return err
}

// rehearse does once what is to be done with the offer, with memory that was kept.
func (s *side) rehearse() error {
	if !s.kept.came() {
		return nil
	}
	fd, err := duplicate(s.kept)
	if err != nil {
		return err
	}
	m, err := s.take(s.keptSize, received(fd, s.bare), &steps{}, func() error { return nil })
	if err != nil {
		return err
	}
	return m.close()
}

func duplicate(d descriptor) (int, error) {
	return unix.FcntlInt(d.fd(), unix.F_DUPFD_CLOEXEC, 3)
}
