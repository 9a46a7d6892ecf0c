package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Attach connects to the producer that listens at path, takes its offer of that
// name ("" for the only one) and maps the memory on dev, read-only unless an
// option says otherwise. ctx bounds attaching, not the attachment. The caller
// owns the Attachment.
//
// If the producer is still making the data ([OfferOptions].Pending), Attach maps the
// memory and then waits for the data. If the producer dies after that, Attach still
// succeeds, and the lease is over; for legacy memory the producer must first have
// confirmed that the opened memory is the offered one ([Legacy]). If a step fails,
// Attach leaves nothing behind and tells the producer why.
//
// Errors: [sock.ErrNoListener] and the others of [sock.Dial]; [sock.ErrNotAdmitted]
// for a producer of another user; [ErrRefused]; [ErrWithdrawn], [ErrRevoked] or
// [ErrRestarting] of an offer that ends meanwhile; [ErrTimeout];
// [sock.ErrPeerLost]; [ErrUnsupported]; [ErrProtocol]; [ErrTooLarge]; [ErrStale]; [ErrHandle]; those of [vmm.Import], or of
// [cu.Context.OpenIPC] and [vmm.ErrDescriptor], [vmm.ErrDevice] and [vmm.ErrKind];
// an error for an invalid option.
func Attach(ctx context.Context, path, name string, dev *cu.Device, opts *AttachOptions) (*Attachment, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
	o, err := newAttachOptions(opts)
	if err != nil {
		return nil, err
	}
	if err := o.onlyFollows(); err != nil {
		return nil, err
	}
	return o.attach(ctx, path, name, dev)
}

func (o *attachOptions) attach(ctx context.Context, path, name string, dev *cu.Device) (*Attachment, error) {
	if dev == nil {
		return nil, errors.New("share: no device to attach on (nil)")
	}
	if name != "" {
		if err := wire.CheckName(name); err != nil {
			return nil, err
		}
	}
	return (&attaching{opts: o, path: path, name: name, dev: dev}).attach(ctx)
}

// An attaching is one Attach under way. It takes these steps, each of which can fail:
//
//	connect   connect to a producer that the policy admits
//	ask       tell it what is wanted
//	receive   wait for its whole offer, with all descriptors
//	open      map the memory, or open legacy memory; resumed memory is mapped already
//	answer    tell the producer so, once the data is there
//	confirm   for legacy memory: the producer says that it is what it offered
type attaching struct {
	transport *serve.Transport
	process   *sock.Process // that listens, or nil
	unwatched error         // why not
	opts      *attachOptions
	path      string
	name      string
	dev       *cu.Device
	resumes   *Attachment                 // whose memory this is to be a lease of, or nil
	before    *vmm.Descriptor             // the memory that was detached, or nil
	same      bool                        // no other may be offered
	again     bool                        // the producer knows how to be asked for that
	room      *vmm.Reservation            // where the memory is mapped, which is the attachment's; or nil
	line      *atomic.Pointer[Attachment] // of the attachment that was detached, or nil
	asleep    *detached                   // what the attachment that is resumed has while it is detached, or nil
	step      *serve.Stepper

	made        cu.Stack          // where a lost attachment was made
	takes       wire.Capabilities // the producer
	heard       bool              // its first record has come, which says that
	offer       wire.Offer
	whole       bool // the last record of the offer has come
	files       []*os.File
	filesClosed <-chan struct{} // closed when they are; nil before that has begun
	data        []byte          // of the application, that came behind the offer
	cursors     *os.File        // memory of this lease alone, or nil
	memory      attachedMemory  // nil before it is open
	asked       bool            // there is a conversation
	answer      [64]byte        // room for what is said, made before the offer comes
}

// attach makes an attachment.
func (a *attaching) attach(ctx context.Context) (*Attachment, error) {
	if err := a.lease(ctx); err != nil {
		return nil, err
	}
	if a.resumes != nil {
		a.memory = a.resumes.memory // which stays the other's until there is nothing left to fail
	}
	return newAttachment(a), nil
}

// lease takes all steps.
func (a *attaching) lease(ctx context.Context) error {
	if err := a.connect(ctx); err != nil {
		return err
	}
	a.step = serve.NewStepper(ctx, &a.opts.conn.Timeout)
	defer func() { a.step.Cancel() }()
	if err := a.take(ctx); err != nil {
		return a.fail(ctx, err)
	}
	return nil
}

func (a *attaching) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, a.opts.conn.Timeout, ErrTimeout)
	defer cancel()
	t, err := connect(ctx, a.path, a.opts.conn)
	if err != nil {
		return err
	}
	a.transport = t
	a.process, a.unwatched = a.opts.conn.Process(t.Conn)
	a.opts.OnConnected(t.Conn.Peer())
	return nil
}

// connect connects to a producer that the policy admits.
func connect(ctx context.Context, path string, o serve.PeerOptions, opts ...sock.DialOption) (*serve.Transport, error) {
	conn, err := sock.Dial(ctx, path, append(opts, sock.WithMaxRecord(wire.MaxRecord))...)
	if err != nil {
		return nil, err
	}
	if err := o.Policy.Check(conn.Peer()); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	t := serve.NewTransport(conn, o)
	t.Superseded = make(chan struct{})
	return t, nil
}

// take takes the steps that come after connect.
func (a *attaching) take(ctx context.Context) error {
	if err := a.ask(ctx); err != nil {
		return err
	}
	if err := a.receiveOffer(); err != nil {
		return err
	}
	a.opts.OnReceived(a.described(), a.files)
	if err := a.open(); err != nil {
		return err
	}
	if a.offer.Pending {
		a.refuseFiles()
		a.dropFiles()
		if err := a.awaitData(); err != nil {
			return err
		}
	}
	if err := a.say(ctx, wire.Mapped{Generation: a.offer.Memory.Generation}); err != nil {
		return err
	}
	a.refuseFiles()                                       // not before: the producer waits for what was said
	a.filesClosed, a.files = sock.DropFiles(a.files), nil // the caller need not wait for that
	if a.offer.Legacy == nil {
		return nil
	}
	return a.awaitConfirmation()
}

// ask tells the producer what is wanted, and then does what need not wait for its answer: it notes
// who attaches.
func (a *attaching) ask(ctx context.Context) (err error) {
	flags, _ := processFlags(a.dev)
	again, after := a.wantsAgain()
	err = a.say(ctx, wire.Attach{Driver: a.dev.Driver().Kind(), Access: a.opts.Access, Name: a.name, Capabilities: a.opts.capabilities(),
		Process: wire.Process{Told: true, Flags: flags}, Resume: a.generation(), Reattach: again, After: after})
	if a.asked = err == nil; !a.asked {
		return err
	}
	if a.resumes == nil { // nothing is mapped anew
		a.made = cu.Here(3)
	}
	return nil
}

// say sends m. A producer that has gone is no error here: it may have sent its answer before.
func (a *attaching) say(ctx context.Context, m wire.Message) error {
	err := a.transport.SendRecord(ctx, wire.Append(a.answer[:0], m))
	if errors.Is(err, sock.ErrPeerLost) {
		return nil
	}
	return err
}

// receiveOffer collects the records of the offer that was asked for.
func (a *attaching) receiveOffer() error {
	for {
		m, files, err := a.transport.Receive(a.step.Ctx, true)
		if errors.Is(err, sock.ErrPeerLost) {
			return fmt.Errorf("the producer closed the connection before its offer was complete: %w", err)
		}
		if err != nil {
			return err
		}
		if _, ok := m.(wire.Offer); ok {
			a.files = append(a.files, files...)
		}
		switch m := m.(type) {
		case wire.Progress:
			a.hears(m.Capabilities)
			a.opts.OnProgress(m.Done, m.Total)
		case wire.Revoke:
			return serve.RevokedError(m)
		case wire.Offer:
			a.hears(m.Capabilities)
			if err := a.add(m); err != nil {
				return err
			}
		case wire.Data:
			if err := errors.Join(a.addData(files[0]), sock.CloseFiles(files)); err != nil {
				return err
			}
		case wire.Cursors:
			if err := a.addCursors(files); err != nil {
				return err
			}
		default:
			return serve.Unexpected(m, "where an offer belongs")
		}
		if a.isComplete() {
			return nil
		}
		a.step.Renew()
	}
}

// hears notes what the producer takes, which its first record says.
func (a *attaching) hears(takes wire.Capabilities) {
	if !a.heard {
		a.heard, a.takes = true, takes
	}
}

// add takes a record of the offer, whose descriptors are among files.
func (a *attaching) add(m wire.Offer) error {
	if a.whole {
		return serve.Unexpected(m, "where application data belongs")
	}
	if err := m.Follows(a.offer, len(a.files)); err != nil {
		return err
	}
	if m.Resume != a.generation() {
		return fmt.Errorf("%w: generation %d is resumed where %d was asked for (0 is none)", serve.ErrUnexpected, m.Resume, a.generation())
	}
	if err := a.checkSame(m); err != nil {
		return err
	}
	if err := a.opts.tooLarge(m); err != nil {
		return err
	}
	a.offer, a.data = m, m.Data
	if a.whole = m.Legacy != nil || m.Resume != 0 || len(a.files) == m.Memory.Chunks; !a.whole {
		return nil
	}
	return a.opts.suits(m, a.name)
}

// described is the offer in the caller's terms.
func (a *attaching) described() OfferInfo {
	m := a.offer
	return OfferInfo{m.Name, m.Memory, m.Access, a.data, a.transport.Conn.Peer(), m.Process.Flags&wire.ProcessWaits != 0, m.Legacy}
}

// awaitData waits until the producer says that the data of a pending offer is there.
func (a *attaching) awaitData() error {
	err := a.hear(wire.Publish{Generation: a.offer.Memory.Generation}, "where the data of an offer is waited for")
	if errors.Is(err, sock.ErrPeerLost) {
		return fmt.Errorf("the producer closed the connection before it said that its data is there: %w", err)
	}
	return err
}

// awaitConfirmation waits until the producer says that the memory is what it offered.
func (a *attaching) awaitConfirmation() error {
	err := a.hear(wire.Confirm{Generation: a.offer.Memory.Generation}, "where a confirmation belongs")
	if errors.Is(err, sock.ErrPeerLost) {
		return fmt.Errorf("the producer closed the connection before it confirmed that the memory is what it offered: %w", err)
	}
	return err
}

// hear waits for the message want.
func (a *attaching) hear(want wire.Message, state string) error {
	for {
		a.step.Renew()
		m, files, err := a.transport.Receive(a.step.Ctx, true)
		a.files = append(a.files, files...)
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case wire.Progress:
			a.opts.OnProgress(m.Done, m.Total)
		case wire.Revoke:
			return serve.RevokedError(m)
		default:
			if m == want {
				return nil
			}
			if m.Type() == want.Type() {
				return fmt.Errorf("%w: %s of another generation than was offered", serve.ErrUnexpected, m.Type())
			}
			return serve.Unexpected(m, state)
		}
	}
}

// refuseFiles takes no descriptors from now on. Where the kernel cannot, each record is looked at.
func (a *attaching) refuseFiles() { _ = a.transport.Conn.RefuseFiles() }

// dropFiles closes the received descriptors. A lying peer's may take long to close.
func (a *attaching) dropFiles() {
	_ = sock.CloseFiles(a.files)
	a.files = nil
}

// fail ends an attaching that failed with err. It leaves nothing behind and tells the
// producer why. It closes legacy memory first, because the producer may free it then.
func (a *attaching) fail(ctx context.Context, err error) error {
	if a.isComplete() { // before that the producer may be sending some, and would learn of nothing else
		a.refuseFiles()
	}
	if a.memory != nil {
		err = errors.Join(err, a.memory.CloseNow())
	}
	a.dropFiles()
	serve.DropCursors(a.cursors)
	if serve.IsEnded(err) && a.offer.Process.Told {
		a.transport.TrySay(wire.Farewell{}) // nothing is mapped any more
	}
	if last := attachFailed(err); a.asked && last != nil {
		grace := a.transport.Farewell()
		if ctx.Err() != nil || errors.Is(err, ErrTimeout) { // there is no more time
			grace = 0
		}
		told := a.transport.Close(last, grace)
		if a.offer.Legacy != nil && errors.Is(told, sock.ErrPeerLost) { // which may be why there was nothing to be opened
			err = errors.Join(err, told)
		}
	}
	return errors.Join(err, a.transport.Conn.Close(), a.process.Close())
}

// attachFailed returns what the producer is told, or nil.
func attachFailed(err error) wire.Message {
	switch {
	case serve.IsGone(err), serve.IsEnded(err):
		return nil
	case errors.Is(err, serve.ErrRate):
		return serve.Refusal(err)
	}
	return wire.Verdict{OK: false, Text: "attaching failed: " + err.Error()}
}
