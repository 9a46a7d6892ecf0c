package share

import (
	"context"
	"fmt"

	"github.com/gpufd/gpufd/internal/broker"
)

// Expect makes consumers that ask for name wait until it is offered; otherwise they
// would be refused. They wait until their own time for a step is over, which
// [Server.Working] renews. An Offer of that name ends the wait, even if it fails, unless
// another one is being made. While there is an offer of that name, consumers get that
// one; those that come after its end wait. Nobody waits for a name that no offer can
// have, such as "". On a closed server Expect does nothing.
func (s *Server) Expect(name string) {
	if s.isZero() {
		return
	}
	s.bring(broker.Expect{Name: name}, nil)
	s.Start()
}

// claim takes the name, if it can be had. Consumers that ask for it wait from now on.
func (o *offering) claim() error {
	s, t := o.server, o.opts
	s.mu.Lock()
	o.id = broker.OfferID(s.newID())
	s.offerings[o.id] = o
	work := s.step(broker.Claim{Offer: o.id, Terms: broker.Terms{
		Record: o.record, Leases: t.leases, Idle: t.idle, Grace: t.grace, Replaces: t.replaces, Resumes: t.resumed, Stands: t.stands, Fence: t.fence.terms(),
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
func (o *offering) refused() error {
	switch s := o.server; {
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case o.taken:
		return fmt.Errorf("%w: %q", ErrNameTaken, o.record.Name)
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
