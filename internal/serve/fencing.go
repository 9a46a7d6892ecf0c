package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/wire"
)

// flags returns what consumers are told of it.
func (f *FenceTerms) flags() wire.ProcessFlags {
	if f != nil && f.Want == fence.Released {
		return wire.ProcessWaits
	}
	return 0
}

// terms returns what the broker is to wait for.
func (f *FenceTerms) terms() broker.Fence {
	switch {
	case f == nil:
		return broker.NoFence
	case f.Want == fence.Released:
		return broker.Released
	}
	return broker.Fenced
}

// boundFence bounds the waits for fences, from now on, until the returned function is called.
func (o *Offering) boundFence() (stop func() bool) {
	f := o.opts.Fence
	if f == nil {
		return func() bool { return true }
	}
	return time.AfterFunc(f.Within, func() { o.unfence(fmt.Errorf("not within %s: %w", f.Within, context.DeadlineExceeded)) }).Stop
}

// awaitFinished waits until the offer's leases have ended and its fences have passed, as OfferOptions.Fence
// says.
func (o *Offering) awaitFinished() {
	select {
	case <-o.finished:
	case <-o.fence.Done():
		o.server.bring(broker.GiveUp{Offer: o.id}, nil)
	}
	<-o.finished
}

// fenceError returns the error that names those who may still write, or nil.
func (o *Offering) fenceError(a broker.Finished) error {
	f := o.opts.Fence
	if len(a.Unsure.List) == 0 {
		return nil
	}
	err := plain.ContextErr(o.fence)
	if a.Doubt != "" {
		why := o.unknown
		if why == nil || why.Error() != a.Doubt {
			why = errors.New(a.Doubt)
		}
		err = fmt.Errorf("%w: %w", fence.ErrUnknown, why)
	}
	return &fence.Error{Want: f.Want, Peers: peersOf(a.Unsure), More: a.Unsure.More, Err: err}
}

// memoryID returns the number of the offering's memory: that of an earlier offer of it that has
// fences, or a new one.
func (o *Offering) memoryID() broker.MemoryID {
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
	if o.opts.Fence != nil && !IsClosed(o.over) {
		s.fencing = append(s.fencing, o)
	}
	return o.memory
}

// isOfSameMemory reports whether o and x, one of which may have more of it by now, are of the
// same memory.
func (o *Offering) isOfSameMemory(x *Offering) bool {
	a, b := o.source.Identity(), x.source.Identity()
	return o.Record.Memory.Generation == x.Record.Memory.Generation || a != nil && a == b
}

// awaitEarlier waits until nobody writes the memory on account of an earlier offer, or ctx ends.
// If it must not wait, it fails instead.
func (o *Offering) awaitEarlier(ctx context.Context, wait bool) error {
	if o.mayBegin() { // the time until the first consumer has the memory counts
		return nil
	}
	s := o.server
	s.mu.Lock()
	var work []*session
	if o.inUse == nil {
		o.begun = make(chan struct{})
		work = s.step(broker.AwaitWriters{Offer: o.id, Wait: wait})
	}
	begun := o.begun
	s.mu.Unlock()
	performAll(work)
	select {
	case <-begun:
	case <-o.over:
		return o.cause
	case <-ctx.Done():
		return plain.ContextErr(ctx)
	}
	return o.inUse
}

// mayBegin reports whether there is no fence that the offering might have to wait for.
func (o *Offering) mayBegin() bool {
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	return len(o.server.fencing) == 0 && o.inUse == nil
}

// isAskedToRelease reports whether the consumer, whose offer or lease has ended, keeps its
// connection until it has released the memory.
func (l *Lease) isAskedToRelease(reason error) bool {
	o := l.offering
	return IsEnded(reason) && o.Record.Process.Flags&wire.ProcessWaits != 0 && l.session.want.Process.Told &&
		l.event.Access == gpumem.ReadWrite && l.whole && o.server.ctx.Err() == nil && o.fence.Err() == nil
}

// closeWhenReleased says last, and waits until the consumer has gone, or until fences are
// waited for no longer.
func (l *Lease) closeWhenReleased(last wire.Message) {
	ctx, cancel := context.WithTimeout(l.offering.fence, l.offering.opts.Fence.Within) // also of an offer that goes on
	defer cancel()
	defer context.AfterFunc(l.offering.server.ctx, cancel)()
	_ = l.transport.closeBy(ctx, last)
}

// sayFarewell says that this side ends in order, to a peer that knows what that is.
func (l *Lease) sayFarewell() {
	if l.session.want.Process.Told {
		l.transport.TrySay(wire.Farewell{})
	}
}

// Fenced returns a channel that is closed when the consumer is fenced (Fenced).
func (l *Lease) Fenced() <-chan struct{} {
	if l.isZero() {
		return Closed
	}
	return l.fence.Fenced()
}

// AwaitFence waits until the lease has ended and the consumer is fenced as wanted.
func (l *Lease) AwaitFence(ctx context.Context, want fence.Kind) error {
	if l.isZero() {
		return errNoLease
	}
	return l.fence.AwaitFence(ctx, want)
}
