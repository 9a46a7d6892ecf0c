package serve

import (
	"context"
	"fmt"

	"github.com/gpufd/gpufd/internal/broker"
)

// Expect makes consumers that ask for name wait until it is offered.
func (s *Server) Expect(name string) {
	if s.isZero() {
		return
	}
	s.bring(broker.Expect{Name: name}, nil)
	s.Start()
}

// claim takes the name, if it can be had. Consumers that ask for it wait from now on.
func (o *Offering) claim() error {
	s, t := o.server, o.opts
	s.mu.Lock()
	o.id = broker.OfferID(s.newID())
	s.offerings[o.id] = o
	work := s.step(broker.Claim{Offer: o.id, Terms: broker.Terms{
		Record: o.Record, Leases: t.Leases, Idle: t.Idle, Grace: t.Grace, Replaces: t.Replaces, Resumes: t.Resumed, Stands: t.Stands, Fence: t.Fence.terms(),
	}})
	err := o.refused()
	if o.taken {
		delete(s.offerings, o.id)
	}
	s.mu.Unlock()
	performAll(work)
	if err != nil {
		return err
	}
	s.Start()
	return nil
}

// refused returns why the offering cannot have its name, or nil. It runs with the server's mu held.
func (o *Offering) refused() error {
	switch s := o.server; {
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case o.taken:
		return fmt.Errorf("%w: %q", ErrNameTaken, o.Record.Name)
	}
	return nil
}

// Working tells the consumers that wait for name that done of total bytes are ready.
func (s *Server) Working(name string, done, total uint64) {
	if s.isZero() {
		return
	}
	s.bring(broker.Work{Name: name, Done: done, Total: total}, nil)
}
