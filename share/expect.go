package share

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gpufd/gpufd/internal/wire"
)

// An expectation is an offer that will be made. Until then another offer may have the
// name; its consumers do not wait.
type expectation struct {
	step     wire.Progress
	waiting  []*waiter // in the order of their coming
	prepared *offering // its descriptors are there; or nil
	makers   int       // offerings that are being made: if the last one fails, the wait ends
}

// progressPause is the shortest time between two reports of progress to a waiting peer.
const progressPause = 250 * time.Millisecond

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
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expect(name)
}

// expect runs with mu held.
func (s *Server) expect(name string) {
	if s.expected[name] == nil && wire.CheckName(name) == nil {
		s.expected[name] = &expectation{}
	}
	s.startAccepting()
}

// claim is Expect for an offering, if it can have its name. From now on the offering
// hears of events that belong to no offer.
func (o *offering) claim() error {
	s, name := o.server, o.record.Name
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case o.opts.resumed:
		s.startAccepting()
		s.watching[o] = struct{}{}
		return nil
	case o.isTaken():
		return fmt.Errorf("%w: %q", ErrNameTaken, name)
	}
	s.expect(name)
	s.expected[name].makers++
	s.watching[o] = struct{}{}
	return nil
}

// isTaken reports whether o cannot have its name, because of an offer that it does not
// replace or another prepared one. It runs with mu held.
func (o *offering) isTaken() bool {
	s, name := o.server, o.record.Name
	e := s.expected[name]
	return s.offers[name] != nil && !o.opts.replaces || e != nil && e.prepared != nil && e.prepared != o
}

// Working tells the consumers that wait for name that done of total bytes are ready.
func (s *Server) Working(name string, done, total uint64) {
	if s.isZero() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.expected[name]; e != nil {
		e.step = wire.Progress{Done: done, Total: total}
		waiting := slices.Clone(e.waiting)
		if e.prepared != nil {
			waiting = slices.Concat(waiting, e.prepared.pending, e.prepared.behind)
		}
		if o := s.offers[name]; o != nil {
			waiting = append(waiting, o.behind...)
		}
		for _, w := range waiting {
			w.tell(e.step)
		}
	}
}

// forget ends the wait for an offer that failed, unless another of that name is being
// made.
func (o *offering) forget() {
	s, name := o.server, o.record.Name
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watching, o)
	o.release()
	if o.opts.resumed {
		return
	}
	e := s.expected[name]
	if e.prepared == o {
		e.prepared = nil
	}
	if e.makers--; e.makers > 0 {
		return
	}
	delete(s.expected, name)
	for _, w := range e.waiting {
		w.stop(s.noOffer(name))
	}
}

// fulfil ends the wait for an offer that is published now, and returns the waiters. It
// runs with mu held.
func (o *offering) fulfil() []*waiter {
	s, name := o.server, o.record.Name
	e := s.expected[name]
	waiting := e.waiting
	e.waiting, e.prepared, e.step = nil, nil, wire.Progress{}
	if e.makers--; e.makers == 0 {
		delete(s.expected, name)
	}
	return waiting
}

// queue makes a consumer wait for an expected offer. If that is prepared, the waiter gets
// a lease. It runs with mu held.
func (s *Server) queue(v *visitor, e *expectation) (*Lease, *waiter, error) {
	w := newWaiter(v)
	if o := e.prepared; o != nil {
		if err := o.admitWaiter(w); err != nil {
			w.stop(err)
			return nil, nil, err
		}
		return w.lease, w, nil
	}
	e.waiting = append(e.waiting, w)
	w.tell(e.step)
	return nil, w, nil
}
