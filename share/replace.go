package share

import (
	"context"
	"slices"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/vmm"
)

// Replace is [Server.Offer] for a name that another offer may have: once buf is ready, it
// takes the name from that offer. From one instant on consumers that ask for name get buf;
// earlier ones get the other memory, and none is refused for lack of an offer. If no offer
// has the name, Replace is Offer.
//
// The leases of the replaced offer go on. Their consumers are told
// ([Attachment.Superseded]), and may stay. The replaced Offer returns nil when the last of
// them has left: until then its buffer must not be written for the next version. Its
// [WithGrace] bounds this, and so does its context. Each consumer sees the memory of one
// offer.
//
// [WithAuthorize] decides about each offer anew. If the name belongs to a prepared offer
// ([Server.Prepare]), Replace fails with [ErrNameTaken], because consumers have that
// offer's descriptors. The other errors are those of Offer; after an error the offer that
// has the name goes on.
func (s *Server) Replace(ctx context.Context, name string, buf *vmm.Buffer, access cu.Access, opts ...OfferOption) error {
	return s.Offer(ctx, name, buf, access, append(slices.Clip(opts), replacing)...)
}

// ReplaceLegacy is [Server.Replace] for legacy memory. It may replace a buffer.
//
// Errors: those of [Server.OfferLegacy]; [ErrNameTaken] as for Replace.
func (s *Server) ReplaceLegacy(ctx context.Context, name string, m *Legacy, opts ...OfferOption) error {
	return s.OfferLegacy(ctx, name, m, append(slices.Clip(opts), replacing)...)
}

func replacing(o *serve.Terms) { o.Replaces = true }

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
	terms, err := newOfferOptions(opts)
	if err != nil {
		return nil, err
	}
	p, err := s.server().Prepare(name, bufferSource{s, buf}, access, terms)
	return (*Prepared)(p), err
}
