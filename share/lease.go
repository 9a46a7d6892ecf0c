package share

import (
	"context"

	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/sock"
)

// A Lease is one consumer's hold on an offer, which its producer can watch and take
// back. It begins when the consumer is admitted ([OfferOptions].OnLease, [Offer.Leases]) and ends
// with the connection; it need not be closed. It is safe for concurrent use. The zero
// Lease has ended.
type Lease serve.Lease

func (l *Lease) lease() *serve.Lease { return (*serve.Lease)(l) }

func leasesOf(served []*serve.Lease) (all []*Lease) {
	for _, l := range served {
		all = append(all, (*Lease)(l))
	}
	return all
}

// Number returns the lease's number within its offer, from 1, as in [Event].
func (l *Lease) Number() int { return l.lease().Number() }

// Peer returns the consumer that holds the lease.
func (l *Lease) Peer() sock.Peer { return l.lease().Peer() }

// Process returns the process that holds the lease, to wait for its end even after the
// server has closed ([sock.Process.File]). The caller owns it. The error is
// [sock.ErrNoProcess] if the process is not known.
func (l *Lease) Process() (*sock.Process, error) { return l.lease().Process() }

// Access returns the access that the consumer asked for and got; always [cu.ReadWrite] for
// legacy memory.
func (l *Lease) Access() gpumem.Access { return l.lease().Access() }

// Detached reports whether the consumer has unmapped the memory and keeps its lease ([Attachment.Detach]). If it
// takes the memory back it has another lease, and this one ends.
func (l *Lease) Detached() bool { return l.lease().Detached() }

// Err returns why the lease has ended, after Done: nil if the consumer has closed its
// attachment; a [*sock.LostError] if it was killed or went without a farewell; [ErrRevoked],
// [ErrWithdrawn], [ErrSuperseded] or [ErrRestarting] if this side has ended it; or the error of the
// Ended event. For a consumer that is older than farewells, it is nil even
// if the consumer was killed. If the consumer may still have legacy memory open, the error
// matches [ErrStillOpen] as well.
func (l *Lease) Err() error { return l.lease().Err() }

// Revoke takes this lease back: the consumer is told why and disconnected, and its
// attachment, or its Attach, ends with [ErrRevoked] and the reason, which may be "". The offer and its other leases go on.
// Revoke does not wait ([Lease.Done] does); after the lease's end it does nothing.
//
// The consumer keeps its descriptors and its mappings: nobody can take them back. It is
// asked to close legacy memory, and the lease ends when it has, or with [ErrStillOpen].
// The consumer may attach again. If its data was there already, the lease still counts for
// [OfferOptions].MaxConsumers.
func (l *Lease) Revoke(reason string) { l.lease().Revoke(reason) }

// Released reports whether the lease has ended and the consumer does not use the memory any more: it
// has said so, or its process has died ([fence.Released]).
func (l *Lease) Released() bool { return l.lease().Released() }

// AwaitFence waits until the lease has ended and the consumer is fenced as wanted. With a
// context that is done, it only checks. It does not end the lease ([Lease.Revoke] does).
// A consumer that gave its verdict has said no farewell, so only its death fences it. A
// consumer that could not attach has nothing of the memory, and counts as [fence.Released].
//
// The error is a [*fence.Error]. It matches [fence.ErrUnknown], at once, where the end cannot be
// known, and after [Server.Close]; else it holds what ended ctx.
func (l *Lease) AwaitFence(ctx context.Context, want fence.Kind) error {
	return l.lease().AwaitFence(ctx, want)
}

// Notify sends the consumer up to [MaxNotice] bytes of the application's own, which it gets
// from [Attachment.Notices], even before it has the memory. Notify returns when they are
// sent, and waits while the consumer's queue is full. An older consumer ignores them. A
// consumer refuses more than 1,000 records a second. Once the lease has
// ended, Notify returns [Lease.Err].
func (l *Lease) Notify(ctx context.Context, b []byte) error { return l.lease().Notify(ctx, b) }

// Notices returns the channel of what the consumer sends with [Attachment.Notify]. It holds
// 16 notices; then the oldest are dropped. The channel is never closed: Done says when the
// lease has ended, and earlier notices can still be taken then.
func (l *Lease) Notices() <-chan []byte { return l.lease().Notices() }

// Done returns a channel that is closed when the lease has ended: the consumer has gone,
// died or given its verdict, took too long or broke the protocol; the lease was revoked;
// or the offer or the server has ended. A consumer that is told to go first has a second
// to read that. One that was sent a legacy handle has as long as for any step
// ([ListenOptions].Timeout) to close the memory. If the offer waits until the consumer has released
// the memory ([OfferOptions].Fence), the lease lasts until it has, or until that wait is over.
func (l *Lease) Done() <-chan struct{} { return l.lease().Done() }

// Fenced returns a channel that is closed when the consumer is fenced ([fence.Fenced]): the lease
// has ended and the process that attached has died, in either order. Where that cannot be
// known, the channel is never closed, and [Lease.AwaitFence] says so. The zero Lease's is
// closed.
func (l *Lease) Fenced() <-chan struct{} { return l.lease().Fenced() }
