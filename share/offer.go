package share

import (
	"context"

	"github.com/gpufd/gpufd/internal/serve"
)

// An Offer is memory that a server offers under a name. Its maker owns it, and ends it with Close
// or by closing the server. It is safe for concurrent use. The zero Offer is over.
type Offer struct {
	server *Server
	core   *serve.Offering
}

// Offer offers memory under a name, read-only unless [OfferOptions].Access says more. It returns at once:
// consumers that ask for the name get the memory, or wait for it, until the offer is over. That is
// when it is closed, or an option ends it, or another one has superseded it and its last consumer
// has left ([Offer.Done]).
//
// Before it serves the first consumer, the offer waits for the work that is queued in the primary
// contexts of the devices that can use a buffer ([vmm.Buffer.Users]), or in the context of legacy
// memory, unless [OfferOptions].Synchronized. It offers a buffer as it is now: to offer what it grows by
// later, supersede the offer by the same buffer, which has a larger generation then. The caller
// keeps the memory, which cannot be closed before the offer is done ([ErrInUse]). Memory of another
// process can be offered on, with at most the access that it was attached with: see [AttachOptions].Reoffer.
//
// If the data is not there yet, the offer is pending ([OfferOptions].Pending): its maker does the slow part
// beforehand, and [Offer.Publish] is the rest. Consumers that ask meanwhile are sent the
// descriptors, map the memory and wait for its data. A pending offer may begin without memory (a nil
// Source): consumers wait until [Offer.Provide] has given it some. They wait until their own time for
// a step is over, which [Offer.ReportProgress] renews. One that does not attach through this
// library could look at unfinished data.
//
// Errors: [ErrNameTaken]; [ErrClosed]; [ErrInUse] for pending memory that consumers of an earlier
// offer may still write ([OfferOptions].Fence); those of [vmm.Buffer.Lend]; [ErrMemoryGone]; an invalid
// option, or a description of memory that no consumer would take. What goes wrong later is
// [Offer.Err].
func (s *Server) Offer(name string, src Source, opts *OfferOptions) (*Offer, error) {
	terms, err := opts.served(false)
	if err != nil {
		return nil, err
	}
	return s.offer(name, src, terms)
}

func (s *Server) offer(name string, src Source, terms *serve.Terms) (*Offer, error) {
	source, err := s.source(src)
	if err != nil {
		return nil, err
	}
	core, err := s.server().Offer(name, source, terms)
	if err != nil {
		return nil, err
	}
	return &Offer{s, core}, nil
}

// offering returns what serves, or nil for the zero Offer.
func (o *Offer) offering() *serve.Offering {
	if o == nil {
		return nil
	}
	return o.core
}

// Supersede offers other memory in the place of this. Once that is ready, it takes the name: from
// one instant on consumers that ask for it get the new memory, and none is refused for lack of an
// offer. Earlier leases go on. Their consumers are told ([Attachment.Superseded]), and may stay:
// until the last of them has left, this offer is not done, and its memory must not be written for
// the next version; [OfferOptions].Grace of this offer bounds that, and so does Close. Each version needs a
// buffer of its own: one that is filled again is of the same generation, and consumers that wait for newer
// memory do not take it.
//
// [ListenOptions].Authorize decides about each offer anew. The errors are those of [Server.Offer]; if the
// name belongs to another pending offer, whose descriptors consumers have, the error is
// [ErrNameTaken]. After an error this offer goes on, unless another has superseded it. It need not be the one
// that has the name now. Of two offers that are not pending, the later one has the name in the end,
// whichever is ready first: the earlier one is superseded at once, which is [ErrSuperseded] if Supersede
// has not returned yet.
func (o *Offer) Supersede(src Source, opts *OfferOptions) (*Offer, error) {
	if o.offering() == nil {
		return nil, errNoOffer
	}
	terms, err := opts.served(true)
	if err != nil {
		return nil, err
	}
	return o.server.offer(o.core.Record.Name, src, terms)
}

// Provide gives a pending offer that was made without memory its memory. It exports that
// (cuMemExportToShareableHandle, 600 to 900 µs for a buffer of one chunk), and sends the descriptors
// to the consumers that wait or come from now on. The errors are those of [Server.Offer]. If the memory
// could not be offered, the offer is over; after a call that does not apply it goes on.
func (o *Offer) Provide(src Source) error {
	if o.offering() == nil {
		return errNoOffer
	}
	source, err := o.server.source(src)
	if err != nil {
		return err
	}
	if source == nil {
		return serve.ErrNoSource
	}
	return o.core.Provide(source)
}

// Publish says that the data of a pending offer is there: when it returns nil, consumers have it. It waits
// for work on the memory first, as [Server.Offer] says, until ctx ends: then the offer stays pending, and
// Publish can be called again. After another failure the offer is over. If it was over before, the error says
// why ([ErrWithdrawn], [ErrClosed]).
func (o *Offer) Publish(ctx context.Context) error { return o.offering().Publish(ctx) }

// ReportProgress tells the consumers that wait for the data that done of total bytes are ready, and
// renews their time ([AttachOptions].OnProgress). Call it a few times a second at most.
func (o *Offer) ReportProgress(done, total uint64) { o.offering().ReportProgress(done, total) }

// Leases returns the leases that have not ended, in the order of their numbers, even after another
// offer has taken the name.
func (o *Offer) Leases() []*Lease { return leasesOf(o.offering().Leases()) }

// Done returns a channel that is closed when the offer is over, its leases have ended, and the
// memory is not lent any more.
func (o *Offer) Done() <-chan struct{} { return o.offering().Done() }

// Err returns nil before Done, and then why the offer is over: nil if it was closed, its consumers
// have left, another one has superseded it, or the server was closed; [ErrNoConsumer]; what has failed, such
// as the wait for work, the socket, or the fence of [OfferOptions].Fence (a [*fence.Error]); or [ErrStillOpen].
func (o *Offer) Err() error { return o.offering().Err() }

// Close ends the offer. Consumers that are still attached are told ([ErrWithdrawn], or
// [ErrSuperseded]) and disconnected; they keep what they have mapped. Close waits for the leases to
// end, and for the fence of [OfferOptions].Fence, so functions of [OfferOptions].OnEvent and [OfferOptions].OnLease must not call it.
// It may be called again and on nil. The only errors are [ErrStillOpen] and a [*fence.Error].
func (o *Offer) Close() error { return o.offering().Close() }
