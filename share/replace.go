package share

import (
	"context"
	"errors"
	"slices"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Replace is [Server.Offer] for a name that another offer may have: it takes the name
// from that one, once buf is ready for consumers. There is one instant from which on
// consumers that ask for name get buf; those before it get the other memory, and none is
// refused for want of an offer. Without an offer of that name Replace is Offer.
//
// The leases of the offer that is replaced go on. Their consumers are told
// ([Attachment.Superseded]), and may stay. The Offer that is replaced returns nil when
// the last of them has left: until then its buffer must not be written for the next
// version. [WithGrace], given to that Offer, bounds this, and so does its context. Each
// consumer sees the memory of one offer.
//
// What [WithAuthorize] decides about one offer does not count for the other. Where the
// name is that of an offer that is prepared ([Server.Prepare]) Replace is
// [ErrNameTaken], because consumers have the descriptors of that one. The other errors
// are those of Offer; after an error the offer that has the name goes on.
func (s *Server) Replace(ctx context.Context, name string, buf *vmm.Buffer, access cu.Access, opts ...OfferOption) error {
	return s.Offer(ctx, name, buf, access, append(slices.Clip(opts), replacing)...)
}

// ReplaceLegacy is [Server.Replace] for legacy memory. What it replaces may be a buffer.
//
// Errors: those of [Server.OfferLegacy]; [ErrNameTaken] as for Replace.
func (s *Server) ReplaceLegacy(ctx context.Context, name string, m *Legacy, opts ...OfferOption) error {
	return s.OfferLegacy(ctx, name, m, append(slices.Clip(opts), replacing)...)
}

func replacing(o *offerOptions) { o.replaces = true }

// tellSuperseded tells the consumers of an offering, which may be nil, that another has
// its name. Those whose queues are full it leaves to goroutines.
func (o *offering) tellSuperseded(by *offering) {
	if o == nil {
		return
	}
	o.server.mu.Lock()
	live := slices.Clone(o.live)
	o.work.Add(len(live)) // each lease is work, so that nobody has waited for the last yet
	o.server.mu.Unlock()
	record := wire.Encode(wire.Superseded{Generation: by.record.Memory.Generation})
	for _, l := range live {
		if err := l.transport.conn.TrySend(record); !errors.Is(err, sock.ErrWouldWait) {
			o.work.Done() // who has gone needs not know
			continue
		}
		go func() {
			defer o.work.Done()
			_ = l.sendRecord(record)
		}()
	}
}
