package share

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// An AttachOption changes what [Attach] does.
type AttachOption func(*attachOptions)

type attachOptions struct {
	access    cu.Access
	anyDevice bool
	timeout   time.Duration
	goodbye   time.Duration // goodbye, but in tests
	policy    sock.Policy
	connected func(sock.Peer)
	received  func(Offer, []*os.File)
	steps     func(vmm.Step)
	room      uint64
	newerThan uint64
	rate      int
	handles   []HandleType // that are taken
	maxChunks int
	maxSize   uint64 // 0 is any
}

// WithAccess sets what the device may do with the memory here; the offer has to
// allow it. The default is [ReadOnly], which legacy memory cannot be held to: see
// [Attachment.Access] and [WithHandle].
func WithAccess(a cu.Access) AttachOption { return func(o *attachOptions) { o.access = a } }

// WithAnyDevice maps the memory on whichever device of dev's driver it is on,
// instead of failing when that is not dev. Legacy memory of a device that is hidden
// here is opened on dev.
func WithAnyDevice() AttachOption { return func(o *attachOptions) { o.anyDevice = true } }

// WithStepTimeout bounds each step of the conversation with the producer. The
// default is [DefaultTimeout].
func WithStepTimeout(d time.Duration) AttachOption { return func(o *attachOptions) { o.timeout = d } }

// WithProducer says whose offers are taken. The default is this user's.
func WithProducer(p sock.Policy) AttachOption { return func(o *attachOptions) { o.policy = p } }

// OnConnected has f told who the producer is once there is a connection.
func OnConnected(f func(sock.Peer)) AttachOption { return func(o *attachOptions) { o.connected = f } }

// OnReceived has f told of the offer when all of it is here. The files are not
// f's.
func OnReceived(f func(Offer, []*os.File)) AttachOption {
	return func(o *attachOptions) { o.received = f }
}

// OnStep has f told of each step of importing; see [vmm.WithSteps].
func OnStep(f func(vmm.Step)) AttachOption { return func(o *attachOptions) { o.steps = f } }

// WithRoom reserves address space for size bytes, rounded up to the granularity,
// while the offer is waited for, so that this need not be done when it is there
// (cuMemAddressReserve). Memory that is larger gets a reservation of its own, as
// without. If there is no room, Attach fails.
func WithRoom(size uint64) AttachOption { return func(o *attachOptions) { o.room = size } }

// WithNewerThan takes only an offer whose memory has a larger generation
// ([vmm.Descriptor]), and is for who attached before: after its producer has died,
// or has grown the buffer, it gets memory that was made later, or [ErrStale], and
// never takes what it knows already for new. The producer is told. Every generation
// is larger than 0. A buffer that is offered again, with other data in it, has the
// generation that it had: of what the data is, [WithData] can tell.
func WithNewerThan(generation uint64) AttachOption {
	return func(o *attachOptions) { o.newerThan = generation }
}

// WithProducerRate bounds the records that are taken of the producer, 1,000 a second
// by default, which may come at once. A producer that sends more is refused, and the
// lease is over ([ErrRate]). 0 is no bound.
func WithProducerRate(perSecond int) AttachOption {
	return func(o *attachOptions) { o.rate = perSecond }
}

// WithMaxChunks refuses offers of more than n chunks ([ErrTooLarge]), of which each
// is a descriptor that is held while attaching. The default is [vmm.MaxChunks].
func WithMaxChunks(n int) AttachOption { return func(o *attachOptions) { o.maxChunks = n } }

// WithMaxSize refuses offers that would map more than size bytes ([ErrTooLarge]): the
// size of the buffer, rounded up to whole chunks. The default is any size.
func WithMaxSize(size uint64) AttachOption { return func(o *attachOptions) { o.maxSize = size } }

// WithHandle takes memory that is opened by handles of these types, and refuses an
// offer of another ([ErrHandle]). The default is [HandleFD] alone: memory of a
// [HandleLegacy] has no [Attachment.Buffer], can always be written, whatever was asked
// for, and does not stay when its producer frees it.
func WithHandle(types ...HandleType) AttachOption {
	return func(o *attachOptions) { o.handles = types }
}

// An Offer is what a producer says of the memory it offers.
type Offer struct {
	Name       string
	Descriptor vmm.Descriptor
	Access     cu.Access // the most that may be asked for
	Data       []byte    // the application's own
	Producer   sock.Peer

	// Legacy is what legacy memory is opened by: nil where descriptors came. The
	// Descriptor's ChunkSize is that of the whole allocation then, and there is no
	// granularity.
	Legacy *LegacyHandle
}

// Handle is what the memory is opened by.
func (o Offer) Handle() HandleType {
	if o.Legacy != nil {
		return HandleLegacy
	}
	return HandleFD
}

// Attach connects to the producer that listens at path, takes its offer of that
// name ("" for the only one) and maps the memory on dev, read-only unless an
// option says otherwise. ctx bounds attaching, not the attachment. The caller
// owns the Attachment. If its data is still in the making ([Server.Prepare]) the
// memory is mapped, and Attach waits for the data. A producer that dies once its
// offer and the data are here takes nothing away: the Attachment is made, and its
// lease is over; of legacy memory it has to have confirmed as well that what was
// opened is what it offered ([Legacy]). If a step fails nothing is left behind, and a
// producer that had sent its offer is told why.
//
// Errors: [sock.ErrNoListener] and the others of [sock.Dial]; [sock.ErrRefused]
// for a producer of another user; [ErrRefused]; [ErrRevoked]; [ErrTimeout];
// [sock.ErrPeerLost]; [ErrWire]; [ErrVersion]; [ErrProtocol]; [ErrRate]; [ErrTooLarge];
// [ErrStale]; [ErrHandle]; those of [vmm.Import], or of [cu.Context.OpenIPC] and
// [vmm.ErrDescriptor], [vmm.ErrDevice] and [vmm.ErrKind].
func Attach(ctx context.Context, path, name string, dev *cu.Device, opts ...AttachOption) (*Attachment, error) {
	o := attachOptions{
		access: ReadOnly, timeout: DefaultTimeout, goodbye: goodbye, connected: func(sock.Peer) {},
		received: func(Offer, []*os.File) {}, steps: func(vmm.Step) {},
		rate: defaultRate, maxChunks: vmm.MaxChunks, handles: []HandleType{HandleFD},
	}
	for _, f := range opts {
		f(&o)
	}
	if err := checkAccess(o.access); err != nil {
		return nil, err
	}
	if name != "" {
		if err := checkName(name); err != nil {
			return nil, err
		}
	}
	conn, err := dial(ctx, path, o)
	if err != nil {
		return nil, err
	}
	att, err := o.attach(ctx, link{conn, o.timeout, o.goodbye, newMeter(o.rate)}, name, dev)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return att, nil
}

func dial(ctx context.Context, path string, o attachOptions) (*sock.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, ErrTimeout)
	defer cancel()
	conn, err := sock.Dial(ctx, path, sock.WithMaxRecord(mostRecord))
	if err != nil {
		return nil, err
	}
	if err := o.policy.Check(conn.Peer()); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	o.connected(conn.Peer())
	return conn, nil
}

func (o *attachOptions) attach(ctx context.Context, l link, name string, dev *cu.Device) (*Attachment, error) {
	err := l.send(ctx, attach{dev.Driver().Kind(), o.access, name})
	if err != nil && !errors.Is(err, sock.ErrPeerLost) { // who is gone may have said why
		return nil, err
	}
	room, err := o.reserve(dev)
	if err != nil {
		_ = l.part(attachFailed(err))
		return nil, err
	}
	p := newPatience(ctx, &o.timeout)
	defer func() { p.cancel() }()
	msg, files, err := o.takeOffer(p, l, name)
	if err != nil {
		return nil, errors.Join(explain(err), room.Close())
	}
	offer := Offer{msg.name, msg.desc, msg.access, msg.data, l.conn.Peer(), msg.legacy}
	o.received(offer, files)
	if msg.legacy != nil {
		m, err := o.openLegacy(ctx, p, l, msg, dev)
		if err = errors.Join(err, room.Close()); err != nil {
			return nil, errors.Join(err, m.Close())
		}
		return newAttachment(l, offer, m), nil
	}
	buf, err := o.mapOffer(ctx, p, l, msg, files, dev, room)
	if err != nil {
		return nil, err
	}
	return newAttachment(l, offer, buf), nil
}

// takeOffer receives the offer that was asked for, or tells the producer what is
// wrong with the one that came. On error it holds no files.
func (o *attachOptions) takeOffer(p *patience, l link, name string) (offer, []*os.File, error) {
	msg, files, err := receiveOffer(p, l, o.tooLarge)
	if err == nil {
		if err = o.suits(msg, name); err == nil {
			return msg, files, nil
		}
		err = errors.Join(err, sock.CloseFiles(files))
	}
	switch {
	case isBadRecord(err), errors.Is(err, ErrTooLarge), errors.Is(err, ErrStale), errors.Is(err, ErrHandle):
		_ = l.part(attachFailed(err))
	case errors.Is(err, ErrRate):
		_ = l.part(refusal(err))
	}
	return msg, nil, err
}

// mapOffer maps what was offered and tells the producer so when its data is there.
// It takes files and room.
func (o *attachOptions) mapOffer(ctx context.Context, p *patience, l link, msg offer, files []*os.File, dev *cu.Device, room *vmm.Reservation) (*vmm.Buffer, error) {
	answer := l.mapped(ctx, msg)
	whenMapped := answer
	if msg.pending {
		whenMapped = func() error { return nil }
	}
	buf, err := o.importBuffer(msg, files, dev, room, whenMapped)
	if err != nil {
		_ = l.part(attachFailed(err))
		return nil, err
	}
	if msg.pending {
		if err := awaitData(p, l, msg.desc.Generation, answer); err != nil {
			return nil, errors.Join(l.giveUp(err), buf.Close())
		}
	}
	return buf, nil
}

// mapped is how to say that the memory is mapped. A producer that has gone takes
// nothing away.
func (l link) mapped(ctx context.Context, msg offer) func() error {
	return func() error {
		err := l.send(ctx, mapped{msg.desc.Generation})
		if errors.Is(err, sock.ErrPeerLost) {
			return nil
		}
		return err
	}
}

// suits checks that it is the offer that was asked for.
func (o *attachOptions) suits(msg offer, name string) error {
	switch generation := msg.desc.Generation; {
	case name != "" && name != msg.name:
		return fmt.Errorf("%w: %q was offered where %q was asked for", ErrProtocol, msg.name, name)
	case !slices.Contains(o.handles, msg.handleType()):
		return fmt.Errorf("%w: %q is offered by a %s handle, and wanted is %v (WithHandle)", ErrHandle, msg.name, msg.handleType(), o.handles)
	case o.newerThan != 0 && generation <= o.newerThan:
		return fmt.Errorf("%w: %q is of generation %d, and one above %d was asked for", ErrStale, msg.name, generation, o.newerThan)
	}
	return nil
}

// reserve reserves the room that was asked for, if any.
func (o *attachOptions) reserve(dev *cu.Device) (*vmm.Reservation, error) {
	if o.room == 0 {
		return nil, nil
	}
	g, err := vmm.Granularity(dev)
	if err != nil {
		return nil, err
	}
	size, ok := vmm.AlignUp(o.room, g)
	if !ok {
		return nil, fmt.Errorf("%w: room for %d bytes", vmm.ErrSize, o.room)
	}
	return vmm.Reserve(dev.Driver(), size)
}

// attachFailed is what a producer is told that had begun to send its offer.
func attachFailed(err error) verdict { return verdict{false, "attaching failed: " + err.Error()} }

// isBadRecord reports whether err is about a record that came, so that somebody
// is there to be told.
func isBadRecord(err error) bool {
	for _, bad := range []error{
		ErrWire, ErrProtocol, ErrVersion,
		sock.ErrControlTruncated, sock.ErrTruncated, sock.ErrEmptyRecord, sock.ErrTooManyFDs, sock.ErrControl,
	} {
		if errors.Is(err, bad) {
			return true
		}
	}
	return false
}

// explain adds what a lost connection mostly means this early.
func explain(err error) error {
	if errors.Is(err, sock.ErrPeerLost) {
		return fmt.Errorf("the producer closed the connection before its offer was complete: %w", err)
	}
	return err
}

// importBuffer maps the memory, into room if it fits, and calls done at once
// when it is. It takes files and room.
func (o *attachOptions) importBuffer(msg offer, files []*os.File, dev *cu.Device, room *vmm.Reservation, done func() error) (*vmm.Buffer, error) {
	if o.anyDevice && msg.desc.Kind == dev.Driver().Kind() {
		found, err := dev.Driver().DeviceByUUID(msg.desc.Device)
		if err != nil {
			err = fmt.Errorf("the memory is on a device that is not visible to this process, or is hidden from it by %s: %w", hider(msg.desc.Kind), err)
			return nil, errors.Join(err, sock.CloseFiles(files), room.Close())
		}
		dev = found
	}
	if o.access > msg.access {
		err := fmt.Errorf("%w: %s asked for, %s offered", ErrProtocol, o.access, msg.access)
		return nil, errors.Join(err, sock.CloseFiles(files), room.Close())
	}
	opts := []vmm.Option{vmm.WithAccess(o.access), vmm.WithSteps(o.steps), vmm.WithMapped(done)}
	if room != nil {
		if fits(msg.desc, room) {
			opts = append(opts, vmm.WithReservation(room))
		} else if err := room.Close(); err != nil {
			return nil, errors.Join(err, sock.CloseFiles(files))
		}
	}
	return vmm.Import(dev, msg.desc, files, opts...)
}

// hider is what can hide a device from one process and not from another.
func hider(k cu.Kind) string {
	if k == cu.Soft {
		return "CUDA_VISIBLE_DEVICES or another GPUFD_SOFT_DIR, whose devices are others"
	}
	return "CUDA_VISIBLE_DEVICES or its container"
}

func fits(d vmm.Descriptor, room *vmm.Reservation) bool {
	over, size := bits.Mul64(uint64(d.Chunks), d.ChunkSize) // a peer's numbers
	return over == 0 && size <= room.Size()
}

// tooLarge says what of an offer is more than is taken, if anything.
func (o *attachOptions) tooLarge(d vmm.Descriptor) error {
	over, size := bits.Mul64(uint64(d.Chunks), d.ChunkSize) // a peer's numbers
	switch {
	case d.Chunks > o.maxChunks:
		return fmt.Errorf("%w: %d chunks; %d are taken", ErrTooLarge, d.Chunks, o.maxChunks)
	case o.maxSize > 0 && (over > 0 || size > o.maxSize):
		return fmt.Errorf("%w: %d chunks of %d bytes; %d bytes are taken", ErrTooLarge, d.Chunks, d.ChunkSize, o.maxSize)
	}
	return nil
}

// receiveOffer collects the records of an offer that is not too large. On error it
// holds no files.
func receiveOffer(p *patience, l link, tooLarge func(vmm.Descriptor) error) (o offer, files []*os.File, err error) {
	defer func() {
		if err != nil {
			_ = sock.CloseFiles(files)
		}
	}()
	for {
		m, rec, err := l.receive(p.ctx, true)
		if err != nil {
			return o, files, err
		}
		switch m := m.(type) {
		case progress:
			p.renew()
		case revoke:
			return o, files, ErrRevoked
		case offer:
			files = append(files, rec.Files...)
			if err := m.follows(o, len(files)); err != nil {
				return o, files, err
			}
			if err := tooLarge(m.desc); err != nil {
				return o, files, err
			}
			if o = m; m.legacy != nil || len(files) == m.desc.Chunks {
				return o, files, nil
			}
			p.renew()
		default:
			return o, files, errors.Join(unexpected(m, "where an offer belongs"), rec.Close())
		}
	}
}

// awaitData waits until the producer says that the data of a pending offer is
// there, and answers.
func awaitData(p *patience, l link, generation uint64, answer func() error) error {
	err := hearThat(p, l, publish{generation}, "where the data of an offer is waited for")
	if err == nil {
		err = answer()
	}
	if errors.Is(err, sock.ErrPeerLost) {
		return fmt.Errorf("the producer closed the connection before it said that its data is there: %w", err)
	}
	return err
}

// giveUp tells the producer why this side does not attach after all, unless it
// knows.
func (l link) giveUp(err error) error {
	if err == nil || errors.Is(err, ErrRevoked) || errors.Is(err, ErrRefused) || errors.Is(err, sock.ErrPeerLost) {
		return err
	}
	if errors.Is(err, ErrRate) {
		_ = l.part(refusal(err))
		return err
	}
	_ = l.part(attachFailed(err))
	return err
}

// hearThat waits for that message.
func hearThat(p *patience, l link, want message, state string) error {
	for {
		p.renew()
		m, rec, err := l.receive(p.ctx, true)
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case progress:
		case revoke:
			return ErrRevoked
		default:
			if m == want {
				return nil
			}
			if m.kind() == want.kind() {
				return fmt.Errorf("%w: type %d of another generation than was offered", ErrProtocol, m.kind())
			}
			return errors.Join(unexpected(m, state), rec.Close())
		}
	}
}

// follows checks m as the record of an offer that comes after prev, or as the
// first, when there are have descriptors with it.
func (m offer) follows(prev offer, have int) error {
	switch {
	case m.legacy != nil && have == 0:
		return nil // all of it is in one record
	case m.fds < 1 || m.fds > sock.MaxFDs || m.desc.Chunks < 1 || m.desc.Chunks > vmm.MaxChunks:
		return fmt.Errorf("%w: an offer of %d chunks with %d descriptors in a record", ErrWire, m.desc.Chunks, m.fds)
	case have > m.desc.Chunks || m.first != have-m.fds:
		return fmt.Errorf("%w: descriptors %d to %d of %d, where %d had come", ErrWire, m.first, m.first+m.fds, m.desc.Chunks, have-m.fds)
	case m.first == 0:
		return nil
	case m.pending != prev.pending || m.desc != prev.desc || m.access != prev.access || m.name != prev.name || string(m.data) != string(prev.data):
		return fmt.Errorf("%w: the records of an offer contradict each other", ErrWire)
	}
	return nil
}
