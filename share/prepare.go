package share

import (
	"context"
	"sync/atomic"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/broker"
)

// A Prepared is an offer whose data is not there yet, with all work done that can be done
// before. The caller owns it and ends it with Offer or Close. It holds no descriptors of
// its own. It is safe for concurrent use. The zero Prepared is a closed one.
type Prepared struct {
	o    *offering
	over atomic.Bool
}

func (s *Server) prepare(name string, memory source, access gpumem.Access, terms *offerOptions) (*Prepared, error) {
	o, err := s.newOffering(name, memory, access, terms)
	if err != nil {
		return nil, err
	}
	if err := o.awaitEarlier(nil); err != nil {
		return nil, join(err, o.end(err))
	}
	m := o.record
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

// Offer is [Server.Offer] for prepared memory. It waits for work on the memory, tells the
// consumers that have mapped it, and serves them and others until ctx is done or an option
// ends it. A second call, and a call after Close, fails with [ErrClosed].
func (p *Prepared) Offer(ctx context.Context) error {
	if p == nil || p.o == nil || !p.over.CompareAndSwap(false, true) {
		return ErrClosed
	}
	return p.o.serve(ctx)
}

// Close gives up an offer that was not made, and tells the consumers that wait for its data
// ([ErrRevoked]). It may be called again, on nil, and after Offer, whose offer it does not
// end. It waits for functions of [OnEvent], which must not call it. The only errors are
// a [*StillOpenError] and a [*FenceError].
func (p *Prepared) Close() error {
	if p != nil && p.o != nil && p.over.CompareAndSwap(false, true) {
		return p.o.end(ErrRevoked)
	}
	return nil
}
