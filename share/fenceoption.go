package share

import (
	"context"
	"errors"
	"slices"

	"github.com/gpufd/gpufd/share/internal/wire"
)

// WithFence has the memory handed back only when nobody writes it any more: Offer returns,
// and its buffer can be closed or offered again, when each consumer whose lease let it
// write is fenced as wanted. [Fenced] takes the death of its process. With [Released] its
// word will do ([Attachment.Close], [Attachment.Release]): consumers are told that they are
// waited for ([Offer.AwaitsRelease]), and an offer that ends keeps the connections of who
// may write until they have released the memory.
//
// ctx bounds the wait, and so does [Server.Close]: then Offer returns a [*FenceError],
// which names who may still write, and matches [ErrNoFence] where no wait would have told.
// Whose leases are read-only are not waited for: see docs/security.md.
func WithFence(ctx context.Context, want Fence) OfferOption {
	return func(o *offerOptions) { o.fence = &fenceOption{ctx, want} }
}

// A fenceOption is what an offer waits for in the end; nil is nothing.
type fenceOption struct {
	ctx  context.Context
	want Fence
}

func (f *fenceOption) check() error {
	switch {
	case f == nil:
		return nil
	case f.ctx == nil:
		return errors.New("share: WithFence without a context (nil)")
	}
	return f.want.check()
}

// flags is what consumers are told of it.
func (f *fenceOption) flags() wire.ProcessFlags {
	if f != nil && f.want == Released {
		return wire.ProcessWaits
	}
	return 0
}

// unfenced are consumers of an offering whose leases have ended, and who may still write.
type unfenced struct {
	fences  []*fence // whose processes are waited for, each once
	unknown keepers  // whose end will not be known
	why     error    // of the first of them
}

// fenceOff notes a lease that has ended if the memory has to wait for its consumer.
func (o *offering) fenceOff(l *Lease) {
	want := o.opts.fence
	if want == nil || l.event.Access != ReadWrite || l.sent == 0 || l.fence.is(want.want) {
		return
	}
	s, w := o.server, &o.unfenced
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := l.fence.doubt(); err != nil {
		if w.why == nil {
			w.why = err
		}
		w.unknown.add(l.Peer())
		return
	}
	w.fences = slices.DeleteFunc(w.fences, func(f *fence) bool {
		passed := f.watch == l.fence.watch || f.is(want.want)
		if passed {
			s.watches.leave(f.watch)
		}
		return passed
	})
	s.watches.hold(l.fence.watch)
	w.fences = append(w.fences, l.fence)
}

// awaitFences waits until nobody writes the memory any more, as far as that is wanted. The
// error says who may.
func (o *offering) awaitFences() error {
	want, w := o.opts.fence, &o.unfenced // nobody else has it any more
	if want == nil {
		return nil
	}
	for _, f := range w.fences {
		if err := f.await(want.ctx, want.want); err != nil {
			if w.why == nil {
				w.why = err
			}
			w.unknown.add(f.peer)
		}
		o.server.watches.leave(f.watch)
	}
	if w.why == nil {
		return nil
	}
	return &FenceError{want.want, w.unknown.peers, w.unknown.more, w.why}
}

// isAskedToRelease reports whether the consumer keeps its connection until it has released
// the memory, because its offer or its lease of it has ended.
func (l *Lease) isAskedToRelease(reason error) bool {
	o := l.offering
	return errors.Is(reason, ErrRevoked) && o.record.Process.Flags&wire.ProcessWaits != 0 && l.says.Told &&
		l.event.Access == ReadWrite && l.whole && o.server.ctx.Err() == nil && o.opts.fence.ctx.Err() == nil
}

// closeWhenReleased says last, and waits until the consumer has gone, or is not waited for
// any longer.
func (l *Lease) closeWhenReleased(last wire.Message) {
	ctx, cancel := context.WithCancel(l.offering.opts.fence.ctx)
	defer cancel()
	defer context.AfterFunc(l.offering.server.ctx, cancel)()
	_ = l.transport.closeBy(ctx, last)
}

// sayFarewell says that this side ends in order, to who knows what that is.
func (l *Lease) sayFarewell() {
	if l.says.Told {
		l.transport.trySay(wire.Farewell{})
	}
}

// Fenced is closed when the consumer is fenced ([Fenced]): the lease has ended, and the
// process that attached has died, in either order. Where that cannot be known it never is,
// and [Lease.AwaitFence] says so. Of the zero Lease it is closed.
func (l *Lease) Fenced() <-chan struct{} {
	if l.isZero() {
		return closed
	}
	return l.fence.channel()
}

// AwaitFence waits until the lease has ended and the consumer is fenced as wanted; with a
// context that is done it only asks. It does not end the lease ([Lease.Revoke] does).
// A consumer that gave its verdict has said no farewell, and is [Fenced] by its death alone,
// but for one that could not attach: it has nothing of the memory, and counts as [Released].
//
// The error is a [*FenceError]: [ErrNoFence] at once where it cannot be known, also after
// [Server.Close]; what ended ctx.
func (l *Lease) AwaitFence(ctx context.Context, want Fence) error {
	if l.isZero() {
		return ErrClosed
	}
	return l.fence.awaitFence(ctx, want)
}
