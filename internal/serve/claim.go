package serve

import (
	"context"
	"fmt"

	"github.com/gpufd/gpufd/internal/broker"
)

// claim takes the name, if it can be had. Consumers that ask for it wait from now on. It acquires the offering.
func (o *Offering) claim() error {
	s, t := o.server, o.opts
	s.mu.Lock()
	o.id = broker.OfferID(s.newID())
	s.offerings[o.id] = o
	work := s.step(broker.Claim{Offer: o.id, Terms: broker.Terms{
		Record: o.Record, Leases: t.Leases, Idle: t.Idle, Grace: t.Grace, Replaces: t.Replaces, Resumes: t.Resumes, Fence: t.Fence.terms(),
	}})
	err := o.whyRefused()
	if o.taken {
		delete(s.offerings, o.id)
	}
	o.making = true
	o.work.Add(1)
	s.mu.Unlock()
	performAll(work)
	if err != nil {
		return err
	}
	s.Start()
	return nil
}

// whyRefused returns why the offering cannot have its name, or nil. It runs with the server's mu held.
func (o *Offering) whyRefused() error {
	switch s := o.server; {
	case IsClosed(o.over):
		return o.cause
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case o.taken:
		return fmt.Errorf("%w: %q", ErrNameTaken, o.Record.Name)
	}
	return nil
}
