package serve

import (
	"context"
	"errors"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/wire"
)

// sayList sends the peer the list of the offers that the application lets it read. The
// error is why the peer is to be turned away.
func (x *session) sayList() error {
	s := x.server
	s.mu.Lock()
	there := s.broker.There()
	offers := make([]*Offering, len(there))
	for i, l := range there {
		offers[i] = s.offerings[l.Offer]
	}
	s.mu.Unlock()
	var list []wire.Listing
	for i, l := range there {
		if x.allows(offers[i], 0) == nil && x.mayAsk(l.Name, gpumem.ReadOnly) == nil {
			s.mu.Lock()
			leases := s.broker.LeaseCount(l.Offer)
			s.mu.Unlock()
			list = append(list, listing(l, offers[i], leases))
		}
	}
	ctx, cancel := context.WithTimeoutCause(s.ctx, x.transport.Timeout, ErrTimeout)
	defer cancel()
	for _, m := range wire.Lists(list) {
		if err := x.transport.Send(ctx, m); s.ctx.Err() != nil && err != nil {
			return errors.Join(errSilent, err)
		} else if err != nil {
			return err
		}
	}
	_ = x.transport.Close(nil, x.transport.Farewell())
	return nil
}

// listing returns what a list says of an offer.
func listing(l broker.Listed, o *Offering, leases int) wire.Listing {
	r := l.Record
	return wire.Listing{
		Name: r.Name, Driver: r.Memory.Kind, Device: r.Memory.Device, Handle: r.HandleType(), Access: r.Access,
		Size: r.Memory.Size, Generation: r.Memory.Generation, DataSize: max(r.DataSize, uint64(len(r.Data))), Pending: !l.Published,
		Counts: wire.Counts{Told: true, Leases: uint32(leases), Slots: o.opts.Slots},
	}
}

// maxNamed is how many offers a refusal names.
const maxNamed = 10
