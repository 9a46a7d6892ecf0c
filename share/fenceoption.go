package share

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpufd/gpufd/internal/wire"
)

// WithFence makes Offer return only when no consumer writes the memory any more; until
// then its buffer cannot be closed. Offer waits for each consumer whose lease let it write
// to be fenced as wanted. [Fenced] requires the death of its process. For [Released] its
// word is enough ([Attachment.Close], [Attachment.Release]): consumers are told that the
// producer waits for them ([Offer.AwaitsRelease]), and an offer that ends keeps the
// connections of those that may write until they have released the memory.
//
// An Offer or Replace of the same memory by the same server, which may have grown, waits for
// that, too, if the first offer has ended or other memory has its name. If it may still be
// written in the end, both fail with the same error. [Server.Prepare] and [Server.OfferFiles]
// do not wait, and fail with [ErrInUse].
//
// ctx and [Server.Close] bound the wait. Then Offer returns a [*FenceError], which names
// the consumers that may still write, and matches [ErrNoFence] where no wait could tell.
// Offer does not wait for consumers with read-only leases: see docs/security.md.
func WithFence(ctx context.Context, want Fence) OfferOption {
	return func(o *offerOptions) { o.fence = &fenceOption{ctx, want} }
}

// A fenceOption is what an offer waits for in the end; nil waits for nothing.
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

// flags returns what consumers are told of it.
func (f *fenceOption) flags() wire.ProcessFlags {
	if f != nil && f.want == Released {
		return wire.ProcessWaits
	}
	return 0
}

// unfenced are the consumers of an offering that may still write after their leases.
type unfenced struct {
	fences  []*fence   // those to wait for, one per process
	unknown unreleased // those whose end cannot be known
	why     error      // the reason for the first of unknown
}

// fenceOff notes an ended lease if the offering has to wait for its consumer.
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

// awaitFences waits as WithFence says. The error names the consumers that may still write.
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

// noteFence has later offers of the memory wait for the fences of this one's consumers.
func (o *offering) noteFence() {
	if o.opts.fence != nil {
		o.server.mu.Lock()
		defer o.server.mu.Unlock()
		o.server.fencing = append(o.server.fencing, o)
	}
}

// forgetFence ends noteFence; err says who may still write.
func (o *offering) forgetFence(err error) {
	o.unsure = err
	close(o.fenced)
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	o.server.fencing = slices.DeleteFunc(o.server.fencing, func(x *offering) bool { return x == o })
}

// earlier returns the offerings of the memory that are over, or going to be, and whose consumers
// may still write.
func (o *offering) earlier() (all []*offering) {
	s := o.server
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.fencing {
		named := s.offerings[s.broker.Named(x.record.Name)]
		over := isClosed(x.over) || x.published && (x.caller.Err() != nil || named == nil || !named.isOfSameMemory(o))
		if x != o && over && x.isOfSameMemory(o) {
			all = append(all, x)
		}
	}
	return all
}

// isOfSameMemory reports whether o and x, one of which may have more of it by now, are of the
// same memory.
func (o *offering) isOfSameMemory(x *offering) bool {
	a, _ := o.source.(bufferSource)
	b, _ := x.source.(bufferSource)
	return o.record.Memory.Generation == x.record.Memory.Generation || a.buf != nil && a.buf == b.buf
}

// inUse is awaitEarlier where nobody waits.
func (o *offering) inUse() error {
	if len(o.earlier()) == 0 {
		return nil
	}
	return fmt.Errorf("%w: consumers of an earlier offer may still write it", ErrInUse)
}

// awaitEarlier waits until nobody writes the memory on account of an earlier offer, or ctx ends.
func (o *offering) awaitEarlier(ctx context.Context) error {
	for _, x := range o.earlier() {
		select {
		case <-x.fenced:
			if x.unsure != nil {
				return fmt.Errorf("%q was offered before: %w", x.record.Name, x.unsure)
			}
		case <-ctx.Done():
		case <-o.over:
			return o.cause
		}
	}
	return nil
}

// isAskedToRelease reports whether the consumer, whose offer or lease has ended, keeps its
// connection until it has released the memory.
func (l *Lease) isAskedToRelease(reason error) bool {
	o := l.offering
	return errors.Is(reason, ErrRevoked) && o.record.Process.Flags&wire.ProcessWaits != 0 && l.session.want.Process.Told &&
		l.event.Access == ReadWrite && l.whole && o.server.ctx.Err() == nil && o.opts.fence.ctx.Err() == nil
}

// closeWhenReleased says last, and waits until the consumer has gone, or until the context
// of WithFence or the server ends.
func (l *Lease) closeWhenReleased(last wire.Message) {
	ctx, cancel := context.WithCancel(l.offering.opts.fence.ctx)
	defer cancel()
	defer context.AfterFunc(l.offering.server.ctx, cancel)()
	_ = l.transport.closeBy(ctx, last)
}

// sayFarewell says that this side ends in order, to a peer that knows what that is.
func (l *Lease) sayFarewell() {
	if l.session.want.Process.Told {
		l.transport.trySay(wire.Farewell{})
	}
}

// Fenced returns a channel that is closed when the consumer is fenced ([Fenced]): the lease
// has ended and the process that attached has died, in either order. Where that cannot be
// known, the channel is never closed, and [Lease.AwaitFence] says so. The zero Lease's is
// closed.
func (l *Lease) Fenced() <-chan struct{} {
	if l.isZero() {
		return closed
	}
	return l.fence.channel()
}

// AwaitFence waits until the lease has ended and the consumer is fenced as wanted. With a
// context that is done, it only checks. It does not end the lease ([Lease.Revoke] does).
// A consumer that gave its verdict has said no farewell, so only its death fences it. A
// consumer that could not attach has nothing of the memory, and counts as [Released].
//
// The error is a [*FenceError]. It matches [ErrNoFence], at once, where the end cannot be
// known, and after [Server.Close]; else it holds what ended ctx.
func (l *Lease) AwaitFence(ctx context.Context, want Fence) error {
	if l.isZero() {
		return ErrClosed
	}
	return l.fence.awaitFence(ctx, want)
}
