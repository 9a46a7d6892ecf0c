package main

import (
	"errors"
	"io"

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
	if errors.Is(err, io.EOF) || errors.Is(err, sock.ErrPeerLost) {
		err = nil
	}
	return errors.Join(err, s.ctx.Close())
}

// answer takes one message.
func (s *side) answer() error {
	data, file, err := s.link.receive()
	if err != nil {
		return err
	}
	st := steps{side: "consumer", all: make([]rival.Step, 0, mostSteps)}
	st.took("receive", rival.Now())
	msg, err := decodeOffer(data)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	if msg.chunks == 0 {
		return s.link.send(text(nil), nil)
	}
	if msg.chunks != 1 || file == nil {
		return errors.New("an offer of other than one chunk with its descriptor")
	}
	var r report
	m, err := s.take(msg.size, file, &st, func() error {
		from := rival.Now()
		err := s.link.send(text(nil), nil)
		st.took("ack", from)
		return err
	})
	if err != nil {
		return s.link.send(text(err), nil)
	}
	r.salts, r.err = s.read(m, msg.size)
	from := rival.Now()
	r.err = errors.Join(r.err, m.close())
	st.took("unmap", from)
	r.steps = st.all
	return s.link.send(r.encode(), nil)
}
