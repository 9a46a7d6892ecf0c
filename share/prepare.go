package share

import (
	"context"
	"sync/atomic"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/vmm"
)

// A Prepared is an offer whose data is not there yet, with all work done that can be done
// before. The caller owns it and ends it with Offer or Close. It holds no descriptors of
// its own. It is safe for concurrent use. The zero Prepared is a closed one.
type Prepared struct {
	o    *offering
	over atomic.Bool
}

// Prepare does the slow part of a [Server.Offer] while the caller still makes the data. It
// exports the memory (cuMemExportToShareableHandle, 600 to 900 µs for a buffer of one
// chunk), and sends the descriptors to the consumers that wait for name or come from now
// on. They map the memory and wait for its data: their Attach returns when
// [Prepared.Offer] has said that it is there. They wait until their own time for a step is
// over, which [Server.Working] renews.
//
// Prepare offers buf as it is now, without what it grows by later. The caller keeps buf,
// which is lent until the Prepared is closed or its offer has ended. Consumers hold the
// descriptors from now on: one that does not attach through this library could look at
// unfinished data.
//
// Errors: [ErrNameTaken]; [ErrClosed]; [ErrInUse] ([WithFence]) and those of
// [vmm.Buffer.Lend], after which the consumers that waited for name are refused.
func (s *Server) Prepare(name string, buf *vmm.Buffer, access cu.Access, opts ...OfferOption) (*Prepared, error) {
	return s.prepare(name, bufferSource{buf}, access, opts)
}

func (s *Server) prepare(name string, memory source, access cu.Access, opts []OfferOption) (*Prepared, error) {
	o, err := s.newOffering(name, memory, access, opts)
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
