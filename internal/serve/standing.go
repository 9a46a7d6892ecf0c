package serve

import (
	"context"
	"os"
	"sync"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/sock"
)

// A Standing is an offer of descriptors (Server.OfferFiles), which lasts until Close.
type Standing struct {
	offering *Offering
	close    sync.Once
	err      error // Close's
}

// OfferFiles offers memory of which this process has only the descriptors, until Close of what it returns.
func (s *Server) OfferFiles(name string, memory gpumem.Descriptor, files []*os.File, access gpumem.Access, terms *Terms) (*Standing, error) {
	terms.Replaces = true
	o, err := s.newOffering(name, filesSource{memory, files}, access, terms)
	if err != nil {
		return nil, err
	}
	if err = s.enter(); err != nil {
		return nil, join(err, o.end(err))
	}
	defer s.work.Done()
	if err = o.awaitEarlier(context.Background(), false); err == nil {
		err = o.publish(context.Background())
	}
	if err != nil {
		return nil, join(err, o.end(err))
	}
	o.loan.End = func() { sock.DropFiles(files) } // until here they were the caller's
	st := &Standing{offering: o}
	if !terms.Stands {
		s.closeWhenOver(st)
	}
	return st, nil
}

// closeWhenOver closes an offer when the broker has ended it: it is replaced, or retired, and left.
func (s *Server) closeWhenOver(st *Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.offering.onOver = func() { s.work.Go(func() { _ = st.Close() }) }
	if IsClosed(st.offering.over) {
		st.offering.onOver()
	}
}

// Leases returns the leases that have not ended, in the order of their numbers, even after another offer has
// taken the name.
func (s *Standing) Leases() []*Lease {
	if s == nil || s.offering == nil {
		return nil
	}
	return s.offering.Leases()
}

// Replaced returns a channel that is closed when another offer has taken the name, or Standing.Supersede has
// taken it away.
func (s *Standing) Replaced() <-chan struct{} {
	if s == nil || s.offering == nil {
		return Closed
	}
	return s.offering.replaced
}

// Supersede tells the consumers that memory of that generation is offered in the place of this, under another
// name (Attachment.Superseded).
func (s *Standing) Supersede(generation uint64) {
	if s != nil && s.offering != nil {
		s.offering.server.bring(broker.Supersede{Offer: s.offering.id, By: generation}, nil)
	}
}

// Retire ends the offer after its last lease, unless it stands.
func (s *Standing) Retire() {
	s.offering.server.bring(broker.Retire{Offer: s.offering.id}, nil)
}

// Close ends the offer and closes the descriptors.
func (s *Standing) Close() error {
	if s == nil || s.offering == nil {
		return nil
	}
	s.close.Do(func() { s.err = s.offering.end(ErrWithdrawn) })
	return s.err
}
