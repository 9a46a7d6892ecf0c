package share

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/vmm"
)

// An Attachment is memory of another process, mapped here, with its lease: the
// connection. The caller owns it. It is safe for concurrent use. The zero
// Attachment is a closed one.
type Attachment struct {
	path        string
	dev         *cu.Device // that was asked for
	opts        *attachOptions
	memory      attachedMemory
	cursors     *os.File        // of this lease alone, or nil
	filesClosed <-chan struct{} // closed when the descriptors are that came with the offer
	writes      bool            // this side may write the memory

	now    atomic.Pointer[leaseConn] // the lease, or the last one
	swap   sync.Mutex                // held while there is another
	shut   bool                      // there will be no other; under swap
	gone   bool                      // the memory is closed, too; under swap
	former []*serve.Watch            // of earlier producers; run has them, and then endLease

	owner   sync.Mutex // held while the memory is closed or changes hands
	closing int        // calls of Close that wait; under owner
	closed  bool       // there was a Close; under owner
	given   bool       // the memory is another attachment's; under owner

	room   *vmm.Reservation            // where the memory is or was mapped, which this attachment frees; or nil; under owner
	asleep atomic.Pointer[detached]    // the memory is detached; or nil
	line   *atomic.Pointer[Attachment] // the last of those that took one another's place by Reattach
	left   chan struct{}               // closed when the memory is not this attachment's any more
	leave  func()                      // closes left
	unlink func() bool                 // from the context of Follow

	open   context.Context // until this side ends it
	stop   context.CancelFunc
	more   context.Context // until no other lease is wanted, at the latest with open
	last   context.CancelFunc
	done   chan struct{}
	reason error // why done is closed
	once   sync.Once
	judged atomic.Bool    // the producer was given a verdict
	behind sync.WaitGroup // the watches of producers' processes

	life   context.Context // Context's
	cancel context.CancelCauseFunc
}

func newAttachment(from *attaching) *Attachment {
	a := &Attachment{path: from.path, dev: from.dev, opts: from.opts, memory: from.memory, cursors: from.cursors, filesClosed: from.filesClosed, done: make(chan struct{}),
		room: from.room, line: from.line, left: make(chan struct{})}
	a.leave = sync.OnceFunc(func() { close(a.left) })
	a.open, a.stop = context.WithCancel(context.Background())
	a.more, a.last = context.WithCancel(a.open)
	a.life, a.cancel = context.WithCancelCause(context.Background())
	a.writes = from.memory.Access() == cu.ReadWrite
	a.asleep.Store(from.asleep)
	a.take(from)
	if a.line == nil {
		a.line = new(atomic.Pointer[Attachment])
	}
	a.line.Store(a)
	a.linkFollow()
	go a.run()
	return a
}

// linkFollow ends the attachment's context as Follow says.
func (a *Attachment) linkFollow() {
	within := a.opts.within
	if within == nil {
		a.unlink = func() bool { return false }
		return
	}
	a.unlink = context.AfterFunc(within, func() { a.cancel(plain.ContextErr(within)) })
	if !a.opts.Overlap {
		go a.endWhenSuperseded()
	}
}

// isZero reports whether there is no attachment: everything of it is [ErrClosed].
func (a *Attachment) isZero() bool { return a == nil || a.now.Load() == nil }

// run follows one lease after the other: usually there is one.
func (a *Attachment) run() {
	t := a.now.Load()
	var why error // there is no other lease
	for a.follow(t); a.mayResume(t); a.follow(t) {
		t.fence.Settle()
		var next *leaseConn
		if next, why = a.another(t); next == nil {
			break
		}
		t = next
	}
	switch a.reason = t.reason; {
	case t.isReported():
		a.reason = nil
	case a.open.Err() != nil && !a.isOver(t): // while there was no lease
		a.reason = errClosed
	case errors.Is(why, ErrStale):
		a.reason = ErrSuperseded
	case why != nil && a.more.Err() == nil:
		a.reason = errors.Join(a.reason, why)
	}
	if a.opts.follows() && a.asleep.Load() == nil && serve.IsClosed(t.transport.Superseded) { // which endWhenSuperseded may not have seen yet
		a.cancel(ErrSuperseded)
	}
	a.cancel(a.reason)
	close(a.done)
	t.fence.Settle()
}

// Ptr returns the address of the memory in this process, also while it is detached ([Attachment.Detach]); then nothing
// is mapped there.
func (a *Attachment) Ptr() cu.DevicePtr {
	if a.isZero() {
		return 0
	}
	if d := a.asleep.Load(); d != nil && (!serve.IsClosed(a.left) || a.line.Load() != a) {
		return d.room.Ptr()
	}
	return a.memory.Ptr()
}

// Size returns the size of the offered memory, in bytes.
func (a *Attachment) Size() uint64 {
	if a.isZero() {
		return 0
	}
	return a.memory.Size()
}

// Access returns what the device may do with the memory here: what [AttachOptions].Access asked
// for, but always [cu.ReadWrite] for legacy memory.
func (a *Attachment) Access() cu.Access {
	if a.isZero() {
		return 0
	}
	return a.memory.Access()
}

// Device returns the device that can use the memory at [Attachment.Ptr]. It is the one
// that the memory is on, except for legacy memory of a device that is hidden here. With
// [AttachOptions].PeerAccess the device that was asked for can use it, too ([vmm.Buffer.Users]).
func (a *Attachment) Device() *cu.Device {
	if a.isZero() {
		return nil
	}
	return a.memory.Device()
}

// Buffer returns the memory, or nil while it is detached, and for legacy memory ([OfferInfo].Legacy), which a consumer
// gets only if it asks for that ([AttachOptions].Legacy). It belongs to the attachment and ends
// with it, though not before a hold on it ([vmm.Buffer.Hold]).
func (a *Attachment) Buffer() *vmm.Buffer {
	if a.isZero() {
		return nil
	}
	if a.Detached() {
		return nil
	}
	buf, _ := a.memory.(*vmm.Buffer)
	return buf
}

// Offer returns the producer's description of the memory.
func (a *Attachment) Offer() OfferInfo {
	if a.isZero() {
		return OfferInfo{}
	}
	return a.now.Load().offer
}

// Done returns a channel that is closed when the lease has ended: the producer has gone,
// has taken the offer back, or has read a Report. The memory stays mapped until Close.
// Close legacy memory soon: a producer that took it back waits for that only as long as
// for any step, and then frees it. In an attachment of [Follow], Done stays open where
// another lease of the memory is taken.
func (a *Attachment) Done() <-chan struct{} {
	if a.isZero() {
		return serve.Closed
	}
	return a.done
}

// Context returns a context that ends with the lease; its cause is [Attachment.Err]. In
// an attachment of [Follow] it also ends when the producer offers something newer, and with
// the context of Follow.
func (a *Attachment) Context() context.Context {
	if a.isZero() {
		return ended
	}
	return a.life
}

// ended is the Context of a zero Attachment.
var ended = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errClosed)
	return ctx
}()

// Superseded returns a channel that is closed when the producer offers other memory under
// the name ([Offer.Supersede]). Attach again to get it. A keeper may also say that it offers
// other memory in the place of this, under another name. This memory
// and its lease stay, but the producer may wait for their end, and may have set a limit
// ([OfferOptions].Grace). A producer that ends, or that is older than this, does not tell: watch Done
// as well.
func (a *Attachment) Superseded() <-chan struct{} {
	if a.isZero() {
		return serve.Closed
	}
	return a.now.Load().transport.Superseded
}

// Err returns nil before Done, and then why the lease has ended: [ErrWithdrawn],
// [ErrSuperseded], [ErrRevoked] or [ErrRestarting]; a
// [*sock.LostError], which matches [sock.ErrPeerLost], if the producer was killed or went
// without a farewell; [ErrClosed] after Close; or what was wrong with the producer's records. It stays nil if
// the producer has read a [Attachment.Report].
func (a *Attachment) Err() error {
	if a.isZero() {
		return errClosed
	}
	select {
	case <-a.done:
		return a.reason
	default:
		return nil
	}
}

// over returns why nothing can be said to the producer any more, or nil.
func (a *Attachment) over() error {
	if err := a.Err(); err != nil || !serve.IsClosed(a.done) {
		return err
	}
	return errReported
}

// Progress tells the producer that this side has worked through done of total bytes,
// which restarts the time that the producer allows for a step. Call it a few times a
// second; a producer refuses more than 1,000 records a second. When the lease
// is over, Progress returns [Attachment.Err], or [ErrClosed] if this side has reported its verdict.
func (a *Attachment) Progress(ctx context.Context, done, total uint64) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	if err := a.over(); err != nil {
		return err
	}
	t := a.now.Load()
	return t.ended(t.transport.Send(ctx, wire.Progress{Done: done, Total: total}))
}

// Report sends the producer this side's verdict on the memory, which is good if fault
// is nil, and waits until the producer has read it. Then the lease is over; the memory
// stays until Close. Report first closes legacy memory, because the producer may free
// it; if that fails, as with [ErrInUse], nothing is sent and Report may be called again.
func (a *Attachment) Report(ctx context.Context, fault error) error {
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	if a.isZero() {
		return errClosed
	}
	if err := a.closeLegacy(ctx); err != nil {
		return err
	}
	t := a.judge()
	m := wire.Verdict{OK: fault == nil}
	if fault != nil {
		m.Text = fault.Error()
	}
	return t.report(ctx, m)
}

// judge returns the lease that the verdict is for, and makes it the last one. It notes the verdict
// first: last may end the attachment, and Follow then asks whether there was one.
func (a *Attachment) judge() *leaseConn {
	a.swap.Lock()
	defer a.swap.Unlock()
	a.judged.Store(true)
	a.last()
	return a.now.Load()
}

// closeLegacy closes memory that may not be used without a lease.
func (a *Attachment) closeLegacy(ctx context.Context) error {
	if a.now.Load().offer.Legacy == nil {
		return nil
	}
	return a.memory.Release(ctx)
}
