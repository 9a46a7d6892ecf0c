package serve

import (
	"context"
	"sync/atomic"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/broker"
)

// A Prepared is an offer whose data is not there yet, with all work done that can be done before.
type Prepared struct {
	o    *Offering
	over atomic.Bool
}

func (s *Server) Prepare(name string, memory Source, access gpumem.Access, terms *Terms) (*Prepared, error) {
	o, err := s.newOffering(name, memory, access, terms)
	if err != nil {
		return nil, err
	}
	if err := o.awaitEarlier(context.Background(), false); err != nil {
		return nil, join(err, o.end(err))
	}
	m := o.Record
	m.Pending = true
	o.early = o.parcels(m)
	s.bring(broker.Prepare{Offer: o.id}, nil)
	s.mu.Lock()
	err = o.refused()
	s.mu.Unlock()
	if err != nil {
		return nil, join(err, o.end(err))
	}
	return &Prepared{o: o}, nil
}

// Offer is Server.Offer for prepared memory.
func (p *Prepared) Offer(ctx context.Context) error {
	if p == nil || p.o == nil || !p.over.CompareAndSwap(false, true) {
		return ErrClosed
	}
	return p.o.serve(ctx)
}

// Close gives up an offer that was not made, and tells the consumers that wait for its data (ErrWithdrawn).
func (p *Prepared) Close() error {
	if p != nil && p.o != nil && p.over.CompareAndSwap(false, true) {
		return p.o.end(ErrWithdrawn)
	}
	return nil
}
