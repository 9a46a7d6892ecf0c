package share

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/wire"
)

// flags returns what consumers are told of it.
func (f *fenceOption) flags() wire.ProcessFlags {
	if f != nil && f.want == Released {
		return wire.ProcessWaits
	}
	return 0
}

// terms returns what the broker is to wait for.
func (f *fenceOption) terms() broker.Fence {
	switch {
	case f == nil:
		return broker.NoFence
	case f.want == Released:
		return broker.Released
	}
	return broker.Fenced
}

// awaitFinished waits until the offer's leases have ended and its fences have passed, as WithFence
// says.
func (o *offering) awaitFinished() {
	if f := o.opts.fence; f != nil {
		select {
		case <-o.finished:
		case <-f.ctx.Done():
			o.server.bring(broker.GiveUp{Offer: o.id}, nil)
		}
	}
	<-o.finished
}

// fenceError returns the error that names those who may still write, or nil.
func (o *offering) fenceError(a broker.Finished) error {
	f := o.opts.fence
	if len(a.Unsure.List) == 0 {
		return nil
	}
	err := plain.ContextErr(f.ctx)
	if a.Doubt != "" {
		err = fmt.Errorf("%w: %s", ErrNoFence, a.Doubt)
	}
	return &FenceError{f.want, peersOf(a.Unsure), a.Unsure.More, err}
}

// memoryID returns the number of the offering's memory: that of an earlier offer of it that has
// fences, or a new one.
func (o *offering) memoryID() broker.MemoryID {
	s := o.server
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.fencing {
		if x.isOfSameMemory(o) {
			o.memory = x.memory
		}
	}
	if o.memory == 0 {
		o.memory = broker.MemoryID(s.newID())
	}
	if o.opts.fence != nil && !isClosed(o.over) {
		s.fencing = append(s.fencing, o)
	}
	return o.memory
}

// isOfSameMemory reports whether o and x, one of which may have more of it by now, are of the
// same memory.
func (o *offering) isOfSameMemory(x *offering) bool {
	a, b := o.source.identity(), x.source.identity()
	return o.record.Memory.Generation == x.record.Memory.Generation || a != nil && a == b
}

// awaitEarlier waits until nobody writes the memory on account of an earlier offer, or ctx ends.
// Without a context it does not wait, and fails.
func (o *offering) awaitEarlier(ctx context.Context) error {
	begun := make(chan struct{})
	o.server.mu.Lock()
	none := len(o.server.fencing) == 0
	o.begun, o.inUse = begun, nil
	o.server.mu.Unlock()
	if none { // the time until the first consumer has the memory counts
		return nil
	}
	o.server.bring(broker.AwaitWriters{Offer: o.id, Wait: ctx != nil}, nil)
	if ctx == nil {
		ctx = context.Background()
	}
	select {
	case <-begun:
	case <-o.over:
		return o.cause
	case <-ctx.Done():
		return nil
	}
	return o.inUse
}

// isAskedToRelease reports whether the consumer, whose offer or lease has ended, keeps its
// connection until it has released the memory.
func (l *Lease) isAskedToRelease(reason error) bool {
	o := l.offering
	return errors.Is(reason, ErrRevoked) && o.record.Process.Flags&wire.ProcessWaits != 0 && l.session.want.Process.Told &&
		l.event.Access == gpumem.ReadWrite && l.whole && o.server.ctx.Err() == nil && o.opts.fence.ctx.Err() == nil
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
