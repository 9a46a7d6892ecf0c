package share

import (
	"context"
	"slices"

	"github.com/gpufd/gpufd/cu"
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

func replacing(o *offerOptions) { o.replaces = true }
