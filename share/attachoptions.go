package share

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

type attachOptions struct {
	peerOptions
	access    cu.Access
	anyDevice bool
	connected func(sock.Peer)
	received  func(Offer, []*os.File)
	steps     func(vmm.Step)
	room      uint64
	place     *vmm.Reservation // where the memory is mapped, or nil
	reoffer   bool
	newerThan uint64
	wait      bool         // for what is newer than that
	handles   []HandleType // that are taken
	maxChunks int
	maxSize   uint64 // 0 is any
	maxData   int
}

// WithAccess sets what the device may do with the memory here; the offer has to
// allow it. The default is [ReadOnly], which legacy memory cannot be held to: see
// [Attachment.Access] and [WithHandle].
func WithAccess(a cu.Access) AttachOption {
	return attachOption(func(o *attachOptions) { o.access = a })
}

// WithAnyDevice maps the memory on whichever device of dev's driver it is on,
// instead of failing when that is not dev. Legacy memory of a device that is hidden
// here is opened on dev.
func WithAnyDevice() AttachOption {
	return attachOption(func(o *attachOptions) { o.anyDevice = true })
}

// OnConnected calls f with the producer once there is a connection.
func OnConnected(f func(sock.Peer)) AttachOption {
	return attachOption(func(o *attachOptions) { o.connected = f })
}

// OnReceived calls f with the offer when all of it is here. The files are not f's.
func OnReceived(f func(Offer, []*os.File)) AttachOption {
	return attachOption(func(o *attachOptions) { o.received = f })
}

// OnStep calls f after each step of importing; see [vmm.Step].
func OnStep(f func(vmm.Step)) AttachOption {
	return attachOption(func(o *attachOptions) { o.steps = f })
}

// WithRoom reserves address space for size bytes, rounded up to the granularity,
// while the offer is waited for, so that this need not be done when it is there
// (cuMemAddressReserve). Memory that is larger gets a reservation of its own, as
// without. If there is no room, Attach fails.
func WithRoom(size uint64) AttachOption {
	return attachOption(func(o *attachOptions) { o.room = size })
}

// WithReservation maps the memory at the beginning of r, which stays the caller's, who
// closes it after the attachment. Memory that is larger is [vmm.ErrCapacity]. One
// attachment after the other is mapped at the same address so: see [Follow].
func WithReservation(r *vmm.Reservation) AttachOption {
	return attachOption(func(o *attachOptions) { o.place = r })
}

// WithReoffer keeps the descriptors of the memory, so that [Attachment.Buffer] can be
// offered on ([vmm.WithReexport]): a successor takes the memory over from its
// predecessor, which may end then, without loading it again. It is the same memory, of the
// same generation. It can be offered with as much access as it is attached with:
// [ReadOnly] if nothing else is asked for.
//
// The lease says to the predecessor that the memory is in use, by the consumers of its
// successor as well. So Close of such an attachment closes the memory first. While that is
// offered Close is [ErrInUse] and changes nothing. The end of the lease takes nothing away
// from the successor's consumers, nor does [Attachment.Report]: they hear of it only from
// the successor, which decides what it means.
//
// Legacy memory cannot be offered on ([ErrHandle]): it ends with who allocated it.
func WithReoffer() AttachOption {
	return attachOption(func(o *attachOptions) { o.reoffer = true })
}

// WithNewerThan takes only an offer whose memory has a larger generation
// ([vmm.Descriptor]), and is for who attached before: after its producer has died,
// or has grown the buffer, it gets memory that was made later, or [ErrStale], and
// never takes what it knows already for new. The producer is told. Every generation
// is larger than 0. A buffer that is offered again, with other data in it, has the
// generation that it had: of what the data is, [WithData] can tell.
func WithNewerThan(generation uint64) AttachOption {
	return attachOption(func(o *attachOptions) { o.newerThan = generation })
}

// WithWait has Attach wait for newer memory where [WithNewerThan] would have it fail with
// [ErrStale]: the producer keeps it waiting while the name stands for older memory, as it
// does for an offer that it expects ([Server.Expect]). That is bounded by the time of a
// step ([ErrTimeout]), which [Server.Working] renews. When the older offer ends and no
// other is expected, Attach is refused ([RefusedName]). A producer that is older than this
// does not wait: it is ErrStale. Without WithNewerThan there is nothing to wait for.
func WithWait() AttachOption {
	return attachOption(func(o *attachOptions) { o.wait = true })
}

// WithMaxChunks refuses offers of more than n chunks ([ErrTooLarge]), of which each
// is a descriptor that is held while attaching. The default is [vmm.MaxChunks].
func WithMaxChunks(n int) AttachOption {
	return attachOption(func(o *attachOptions) { o.maxChunks = n })
}

// WithMaxSize refuses offers that would map more than size bytes ([ErrTooLarge]): the
// size of the buffer, rounded up to whole chunks. The default, 0, is any size.
func WithMaxSize(size uint64) AttachOption {
	return attachOption(func(o *attachOptions) { o.maxSize = size })
}

// WithMaxData refuses offers with more than n bytes of application data
// ([ErrTooLarge]), which Attach reads into memory of this process. The default is
// [MaxData], which is the most; with 0 no offer that has any is taken.
func WithMaxData(n int) AttachOption {
	return attachOption(func(o *attachOptions) { o.maxData = n })
}

// WithHandle takes memory that is opened by handles of these types, and no other
// ([ErrHandle]). The default is [HandleFD] alone: memory of a [HandleLegacy] has no
// [Attachment.Buffer], can always be written, whatever was asked for, and does not
// stay when its producer frees it. A producer does not send the handle of legacy
// memory to a consumer that does not take such.
func WithHandle(types ...HandleType) AttachOption {
	return attachOption(func(o *attachOptions) { o.handles = types })
}

func newAttachOptions(opts []AttachOption) (*attachOptions, error) {
	o := &attachOptions{
		peerOptions: newPeerOptions(), access: ReadOnly, connected: func(sock.Peer) {},
		received: func(Offer, []*os.File) {}, steps: func(vmm.Step) {},
		maxChunks: vmm.MaxChunks, maxData: MaxData, handles: []HandleType{HandleFD},
	}
	for _, opt := range opts {
		if opt != nil {
			opt.attach(o)
		}
	}
	switch {
	case o.connected == nil || o.received == nil || o.steps == nil:
		return nil, errors.New("share: OnConnected, OnReceived or OnStep without a function (nil)")
	case len(o.handles) == 0:
		return nil, errors.New("share: WithHandle without a type takes no memory at all")
	case slices.ContainsFunc(o.handles, func(h HandleType) bool { return h != HandleFD && h != HandleLegacy }):
		return nil, fmt.Errorf("share: WithHandle(%v): want HandleFD, HandleLegacy or both", o.handles)
	case o.reoffer && slices.Contains(o.handles, HandleLegacy):
		return nil, fmt.Errorf("%w: WithReoffer and WithHandle(%v): legacy memory cannot be offered on", ErrHandle, o.handles)
	case o.place != nil && o.room != 0:
		return nil, errors.New("share: WithRoom and WithReservation: the memory is mapped in one of them")
	case o.maxChunks < 1:
		return nil, fmt.Errorf("share: WithMaxChunks(%d): memory has one chunk at least", o.maxChunks)
	}
	if o.maxData < 0 || o.maxData > MaxData {
		return nil, fmt.Errorf("share: WithMaxData(%d): want 0 to %d", o.maxData, MaxData)
	}
	if err := wire.CheckAccess(o.access); err != nil {
		return nil, err
	}
	return o, o.check()
}

// capabilities is what the producer is told that this side takes.
func (o *attachOptions) capabilities() wire.Capabilities {
	if slices.Contains(o.handles, HandleLegacy) {
		return wire.TakesData | wire.TakesLegacy
	}
	return wire.TakesData
}

// after is the generation above which memory is waited for, or 0.
func (o *attachOptions) after() uint64 {
	if !o.wait {
		return 0
	}
	return o.newerThan
}

// suits checks that it is the offer that was asked for.
func (o *attachOptions) suits(m wire.Offer, name string) error {
	switch generation := m.Memory.Generation; {
	case name != "" && name != m.Name:
		return fmt.Errorf("%w: %q was offered where %q was asked for", ErrProtocol, m.Name, name)
	case !slices.Contains(o.handles, m.HandleType()):
		return fmt.Errorf("%w: %q is offered by a %s handle, and wanted is %v (WithHandle)", ErrHandle, m.Name, m.HandleType(), o.handles)
	case o.newerThan != 0 && generation <= o.newerThan:
		return fmt.Errorf("%w: %q is of generation %d, and one above %d was asked for", ErrStale, m.Name, generation, o.newerThan)
	}
	return nil
}

// tooLarge says what of an offer is more than is taken, if anything.
func (o *attachOptions) tooLarge(m wire.Offer) error {
	d, data := m.Memory, max(m.DataSize, uint64(len(m.Data)))
	size, ok := mappedSize(d)
	switch {
	case data > uint64(o.maxData):
		return fmt.Errorf("%w: %d bytes of application data; %d are taken", ErrTooLarge, data, o.maxData)
	case d.Chunks > o.maxChunks:
		return fmt.Errorf("%w: %d chunks; %d are taken", ErrTooLarge, d.Chunks, o.maxChunks)
	case o.maxSize > 0 && (!ok || size > o.maxSize):
		return fmt.Errorf("%w: %d chunks of %d bytes; %d bytes are taken", ErrTooLarge, d.Chunks, d.ChunkSize, o.maxSize)
	}
	return nil
}

func fits(d vmm.Descriptor, room *vmm.Reservation) bool {
	size, ok := mappedSize(d)
	return ok && size <= room.Size()
}

// mappedSize is how many bytes are mapped, if 64 bits hold that: the numbers are a
// peer's.
func mappedSize(d vmm.Descriptor) (size uint64, ok bool) {
	over, size := bits.Mul64(uint64(d.Chunks), d.ChunkSize)
	return size, over == 0
}
