package share

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/wait"
	"github.com/gpufd/gpufd/share/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// An Attachment is another process' memory, mapped here, and the connection
// that is its lease. The caller owns it. It is safe for concurrent use. The zero
// Attachment is a closed one.
type Attachment struct {
	transport *transport
	path      string
	opts      *attachOptions
	offer     Offer
	memory    attachedMemory
	reoffer   bool // others may have the memory by way of this side

	owner  sync.Mutex // held while the memory is closed or changes hands
	closed bool       // there was a Close; under owner
	given  bool       // the memory is another attachment's; under owner

	done   chan struct{}
	reason error                 // why done is closed
	cause  atomic.Pointer[error] // why this side closed the connection, if it did
	stop   context.CancelFunc
	once   sync.Once
	fence  *fence
	says   wire.Process   // the producer, of its own
	writes bool           // it may
	judged atomic.Bool    // the producer was given a verdict
	behind sync.WaitGroup // the watch of its process

	life   context.Context // Context's
	cancel context.CancelCauseFunc
}

func newAttachment(from *attaching) *Attachment {
	ctx, stop := context.WithCancel(context.Background())
	a := &Attachment{transport: from.transport, path: from.path, opts: from.opts, offer: from.described(), memory: from.memory,
		reoffer: from.opts.reoffer, done: make(chan struct{}), stop: stop}
	a.life, a.cancel = context.WithCancelCause(context.Background())
	a.says, a.writes = from.offer.Process, from.memory.Access() == ReadWrite
	a.watchProcess(from)
	go a.watch(ctx)
	return a
}

// isZero reports whether there is no attachment: everything of it is [ErrClosed].
func (a *Attachment) isZero() bool { return a == nil || a.transport == nil }

// watch reads until the lease is over, and then ends the conversation. Where legacy
// memory is open Close does: the producer may free the memory when the connection has
// ended.
func (a *Attachment) watch(ctx context.Context) {
	defer a.fence.settle()
	defer close(a.done)
	var last wire.Message
	a.reason = a.follow(ctx)
	if isBadRecord(a.reason) || errors.Is(a.reason, ErrRate) {
		last = refusal(a.reason)
	}
	cause := a.cause.Load()
	switch {
	case cause != nil:
		a.reason = *cause
	case ctx.Err() != nil:
		a.reason = ErrClosed
	}
	a.reason = a.fence.lost(a.transport, a.says, a.reason)
	a.fence.released = a.transport.left || errors.Is(a.reason, ErrRevoked)
	a.hangUp(last)
	a.cancel(a.reason)
}

// follow reads until the producer goes or says that the offer has ended.
func (a *Attachment) follow(ctx context.Context) error {
	for {
		m, files, err := a.transport.receive(ctx, true)
		_ = sock.CloseFiles(files)
		switch m := m.(type) {
		case nil:
			return err
		case wire.Progress:
		case wire.Revoke:
			return ErrRevoked
		default:
			return unexpected(m, "from a producer whose offer was taken")
		}
	}
}

// hangUp says last, unless that is nil or would have to wait, and closes the
// connection: the producer waits for that. Where it waits for the memory, too, Close does.
func (a *Attachment) hangUp(last wire.Message) {
	a.stop()
	if a.offer.Legacy != nil || a.awaitsRelease() {
		a.transport.trySay(last)
		return
	}
	_ = a.transport.close(last, 0)
}

// Ptr is where the memory begins here.
func (a *Attachment) Ptr() cu.DevicePtr {
	if a.isZero() {
		return 0
	}
	return a.memory.Ptr()
}

// Size is how many bytes of the memory count.
func (a *Attachment) Size() uint64 {
	if a.isZero() {
		return 0
	}
	return a.memory.Size()
}

// Access is what the device may do with the memory here: what was asked for, and of
// legacy memory always [ReadWrite].
func (a *Attachment) Access() cu.Access {
	if a.isZero() {
		return 0
	}
	return a.memory.Access()
}

// Device is the device that can use the memory at [Attachment.Ptr]. It is the one the
// memory is on, but for legacy memory of a device that is hidden here.
func (a *Attachment) Device() *cu.Device {
	if a.isZero() {
		return nil
	}
	return a.memory.Device()
}

// Buffer is the memory, or nil if that is legacy memory ([Offer.Handle]), which comes
// only to who asks for it ([WithHandle]). It belongs to the attachment and ends with it,
// though not before a [Counter] in it.
func (a *Attachment) Buffer() *vmm.Buffer {
	if a.isZero() {
		return nil
	}
	buf, _ := a.memory.(*vmm.Buffer)
	return buf
}

// Offer is what the producer said of the memory.
func (a *Attachment) Offer() Offer {
	if a == nil {
		return Offer{}
	}
	return a.offer
}

// Done is closed when the lease has ended: the producer has gone, has taken
// the offer back, or a Report has been read. The memory stays mapped until
// Close. Legacy memory has to be closed soon then: a producer that took it back waits
// until it is, or until its time for a step is over, and frees it.
func (a *Attachment) Done() <-chan struct{} {
	if a.isZero() {
		return closed
	}
	return a.done
}

// Context ends when the lease has ended; its cause is [Attachment.Err]. Of an
// attachment of [Follow] it also ends when there is something newer.
func (a *Attachment) Context() context.Context {
	if a.isZero() {
		return ended
	}
	return a.life
}

// ended is the Context of what never was.
var ended = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrClosed)
	return ctx
}()

// closed is the Done of what never was.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Superseded is closed when the producer offers other memory under the name
// ([Server.Replace]): who attaches again gets that. This memory and its lease stay, but
// the producer may be waiting for it, and may have set a time for that ([WithGrace]). A
// producer that ends, or that is older than this, does not say so: watch Done as well.
func (a *Attachment) Superseded() <-chan struct{} {
	if a.isZero() {
		return closed
	}
	return a.transport.superseded
}

// Err says why the lease has ended, after Done: [ErrRevoked]; a [*LostError], which matches
// [sock.ErrPeerLost], if the producer was killed or has just gone; [ErrClosed] after Close;
// or what was wrong with the producer's records.
func (a *Attachment) Err() error {
	if a.isZero() {
		return ErrClosed
	}
	select {
	case <-a.done:
		return a.reason
	default:
		return nil
	}
}

// Progress tells the producer that this side is at work, done of total bytes,
// which begins its time for a step anew. Calling it a few times a second is enough; a producer
// refuses more than it takes ([WithRecordRate]). When the lease is over it is what
// [Attachment.Err] says.
func (a *Attachment) Progress(ctx context.Context, done, total uint64) error {
	if err := a.Err(); err != nil {
		return err
	}
	return a.ended(a.transport.send(ctx, wire.Progress{Done: done, Total: total}))
}

// Report gives the producer this side's verdict on the memory, good if fault
// is nil, and waits until it has been read. The lease is over then; the memory
// stays until Close. Legacy memory is closed before, because the producer may free it
// then: no work may be using it when Report is called.
func (a *Attachment) Report(ctx context.Context, fault error) error {
	if a.isZero() {
		return ErrClosed
	}
	a.judged.Store(true)
	m := wire.Verdict{OK: fault == nil}
	if fault != nil {
		m.Text = fault.Error()
	}
	return errors.Join(a.leave(), a.report(ctx, m))
}

// leave closes what may not be used without a lease.
func (a *Attachment) leave() error {
	if a.offer.Legacy == nil {
		return nil
	}
	return a.memory.Close()
}

func (a *Attachment) report(ctx context.Context, m wire.Verdict) error {
	if err := a.transport.send(ctx, m); err != nil {
		return a.ended(err)
	}
	timer := time.NewTimer(a.transport.timeout)
	defer timer.Stop()
	select {
	case <-a.done:
		if errors.Is(a.reason, io.EOF) {
			return nil // it closes when it has read the verdict
		}
		return a.reason
	case <-timer.C:
		return ErrTimeout
	case <-ctx.Done():
		return wait.Err(ctx)
	}
}

// ended prefers the reason why the lease ended, which the reader knows, to
// what sending on it says. A producer that takes nothing more is lost, even if
// it keeps the connection open to send.
func (a *Attachment) ended(err error) error {
	if err == nil || !errors.Is(err, sock.ErrPeerLost) && !errors.Is(err, sock.ErrClosed) {
		return err
	}
	timer := time.NewTimer(a.transport.goodbye)
	defer timer.Stop()
	select {
	case <-a.done:
	case <-timer.C:
		a.cause.CompareAndSwap(nil, &err)
		a.hangUp(nil) // ends the reader
		<-a.done
	}
	return a.reason
}
