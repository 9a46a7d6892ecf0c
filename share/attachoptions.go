package share

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

type attachOptions struct {
	serve.PeerOptions
	access     cu.Access
	anyDevice  bool
	maxCursors uint64 // 0 takes none
	peer       bool   // the device is to use memory of others
	connected  func(sock.Peer)
	received   func(OfferInfo, []*os.File)
	progress   func(done, total uint64)
	place      *vmm.Reservation // where the memory is mapped, or nil
	reoffer    bool
	newerThan  uint64
	wait       bool          // for what is newer than that
	handles    []HandleType  // that are taken
	maxSize    uint64        // 0 is any
	onWait     func(error)   // is told why Follow waits, or nil
	overlaps   bool          // versions are mapped beside each other
	follows    bool          // the attachment is one of Follow
	maxAbsence time.Duration // how long that stays without a lease, or 0
}

// WithAnyDevice maps the memory on the device that it is on, instead of failing if
// that is not dev. Legacy memory of a device that is hidden here is opened on dev.
func WithAnyDevice() AttachOption {
	return attachOption(func(o *attachOptions) { o.anyDevice = true })
}

// WithPeerAccess lets dev use memory that is on another device, by peer access: copies
// and kernels of dev's contexts reach it at [Attachment.Ptr]. It includes
// [WithAnyDevice]. If dev cannot reach the memory, Attach fails with [ErrNoPeer].
func WithPeerAccess() AttachOption {
	return attachOption(func(o *attachOptions) { o.anyDevice, o.peer = true, true })
}

// OnConnected calls f with the producer once the connection is made.
func OnConnected(f func(sock.Peer)) AttachOption {
	return attachOption(func(o *attachOptions) { o.connected = f })
}

// OnReceived calls f once the whole offer has arrived. f must not close the files.
func OnReceived(f func(OfferInfo, []*os.File)) AttachOption {
	return attachOption(func(o *attachOptions) { o.received = f })
}

// OnProgress calls f when the producer says how far its offer or its data is
// ([Offer.ReportProgress]), a few times a second at most, on the goroutine of Attach. The
// numbers are bytes, as the producer gives them: nothing checks them. A producer need not
// say anything.
func OnProgress(f func(done, total uint64)) AttachOption {
	return attachOption(func(o *attachOptions) { o.progress = f })
}

// quiet drops the application's functions, for a lease that it need not hear of.
func (o *attachOptions) quiet() {
	o.connected, o.received, o.progress = func(sock.Peer) {}, func(OfferInfo, []*os.File) {}, func(_, _ uint64) {}
}

// WithReservation maps the memory at the beginning of r. The caller keeps r, and closes it
// after the attachment. If the memory is larger than r, Attach fails with
// [vmm.ErrCapacity]. Attachments with the same r, one after the other, have the same
// address: see [Follow].
func WithReservation(r *vmm.Reservation) AttachOption {
	return attachOption(func(o *attachOptions) { o.place = r })
}

// WithReoffer keeps the descriptors of the memory, so that [Attachment.Buffer] can be
// offered on ([vmm.WithReexport]). So a successor takes memory over from a predecessor
// that is about to end, without loading it again. It is the same memory, of the same
// generation. It can be offered with at most the access that it is attached with, which
// is [ReadOnly] by default.
//
// The lease tells the predecessor that the memory is in use, also by the successor's
// consumers. So Close of such an attachment closes the memory first; while the memory is
// offered, Close fails with [ErrInUse] and changes nothing. The end of the lease, or a
// [Attachment.Report], takes nothing away from the successor's consumers: the successor
// decides what to tell them.
//
// Legacy memory cannot be offered on ([ErrHandle]): it ends with the process that
// allocated it.
func WithReoffer() AttachOption {
	return attachOption(func(o *attachOptions) { o.reoffer = true })
}

// WithNewerThan takes only an offer whose memory has a larger generation
// ([vmm.Descriptor]); any other is [ErrStale]. Use it to attach again, after the producer
// has died or has grown the buffer, without taking known memory for new. The producer is
// told. Every generation is larger than 0. A buffer that is offered again with other data
// keeps its generation: use [WithData] to tell what the data is.
func WithNewerThan(generation uint64) AttachOption {
	return attachOption(func(o *attachOptions) { o.newerThan = generation })
}

// WithWait makes Attach wait for newer memory where [WithNewerThan] alone would fail with
// [ErrStale]. The producer keeps the consumer waiting while the name stands for older
// memory, as for a pending offer without memory. The wait is bounded by the
// time of a step ([ErrTimeout]), which [Offer.ReportProgress] renews. When the older offer ends
// and no other is expected, the producer refuses ([RefusedName]). With a producer that is
// older than this, Attach fails with ErrStale. Without WithNewerThan, WithWait does nothing.
func WithWait() AttachOption {
	return attachOption(func(o *attachOptions) { o.wait = true })
}

// WithMaxSize refuses offers of more than size bytes ([ErrTooLarge]), and those that would map
// 2 MiB more than that or beyond, by chunks that the buffer does not fill. So the rounding up to
// the device's granularity, which is 2 MiB, does not count. The default, 0, sets no bound.
func WithMaxSize(size uint64) AttachOption {
	return attachOption(func(o *attachOptions) { o.maxSize = size })
}

// WithHandle sets which types of handles Attach takes; offers of other types fail
// ([ErrHandle]). The default is [HandleFD] alone. Memory of a [HandleLegacy] has no
// [Attachment.Buffer], can always be written, and is gone when its producer frees it.
// A producer sends a legacy handle only to a consumer that takes such.
func WithHandle(types ...HandleType) AttachOption {
	return attachOption(func(o *attachOptions) { o.handles = types })
}

func newAttachOptions(opts []AttachOption) (*attachOptions, error) {
	o := &attachOptions{
		PeerOptions: serve.NewPeerOptions(), access: ReadOnly,
		handles: []HandleType{HandleFD},
	}
	o.quiet()
	for _, opt := range opts {
		if opt != nil {
			opt.attach(o)
		}
	}
	switch {
	case o.connected == nil || o.received == nil || o.progress == nil:
		return nil, errors.New("share: OnConnected, OnReceived or OnProgress without a function (nil)")
	case len(o.handles) == 0:
		return nil, errors.New("share: WithHandle without a type takes no memory at all")
	case slices.ContainsFunc(o.handles, func(h HandleType) bool { return h != HandleFD && h != HandleLegacy }):
		return nil, fmt.Errorf("share: WithHandle(%v): want HandleFD, HandleLegacy or both", o.handles)
	case o.reoffer && slices.Contains(o.handles, HandleLegacy):
		return nil, fmt.Errorf("%w: WithReoffer and WithHandle(%v): legacy memory cannot be offered on", ErrHandle, o.handles)
	case o.overlaps && o.place != nil:
		return nil, errors.New("share: WithOverlap and WithReservation: two versions cannot be mapped at one address")
	case o.maxAbsence < 0:
		return nil, fmt.Errorf("share: WithMaxAbsence(%v): want 0, which is no bound, or more", o.maxAbsence)
	}
	if err := wire.CheckAccess(o.access); err != nil {
		return nil, err
	}
	return o, checkPeer(&o.PeerOptions)
}

// capabilities returns what this side tells the producer that it takes.
func (o *attachOptions) capabilities() wire.Capabilities {
	takes := wire.TakesData
	if slices.Contains(o.handles, HandleLegacy) {
		takes |= wire.TakesLegacy
	}
	if o.maxCursors > 0 {
		takes |= wire.TakesCursors
	}
	return takes
}

// after returns the generation that the awaited memory must exceed, or 0.
func (o *attachOptions) after() uint64 {
	if !o.wait {
		return 0
	}
	return o.newerThan
}

// suits checks that m is the offer that was asked for.
func (o *attachOptions) suits(m wire.Offer, name string) error {
	switch generation := m.Memory.Generation; {
	case name != "" && name != m.Name:
		return fmt.Errorf("%w: %q was offered where %q was asked for", ErrProtocol, m.Name, name)
	case !slices.Contains(o.handles, m.HandleType()):
		return fmt.Errorf("%w: %q is offered by a %s handle, and this side takes %v", ErrHandle, m.Name, m.HandleType(), o.handles)
	case o.newerThan != 0 && generation <= o.newerThan:
		return fmt.Errorf("%w: %q is of generation %d, and one above %d was asked for", ErrStale, m.Name, generation, o.newerThan)
	}
	return nil
}

// tooLarge returns what part of the offer is larger than this side takes, or nil.
func (o *attachOptions) tooLarge(m wire.Offer) error {
	d, data := m.Memory, max(m.DataSize, uint64(len(m.Data)))
	size, ok := mappedSize(d)
	switch {
	case data > MaxData:
		return fmt.Errorf("%w: %d bytes of application data; want %d at most", ErrTooLarge, data, MaxData)
	case m.CursorSize > o.maxCursors:
		return fmt.Errorf("%w: %d bytes of cursors; want %d at most", ErrTooLarge, m.CursorSize, o.maxCursors)
	case o.maxSize > 0 && (d.Size > o.maxSize || !ok || size-min(size, o.maxSize) >= granule):
		return fmt.Errorf("%w: %d bytes in %s of %d; want %d bytes at most", ErrTooLarge, d.Size, plain.Count(d.Chunks, "chunk"), d.ChunkSize, o.maxSize)
	}
	return nil
}

// granule is the granularity of all devices that are known.
const granule = 2 << 20

// mappedSize returns how many bytes are mapped. ok is false if that overflows 64 bits: the
// numbers are a peer's.
func mappedSize(d vmm.Descriptor) (size uint64, ok bool) {
	over, size := bits.Mul64(uint64(d.Chunks), d.ChunkSize)
	return size, over == 0
}
