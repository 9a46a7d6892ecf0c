package share

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// AttachOptions are those of [Attach] and [Follow].
type AttachOptions struct {
	// Access is what the device may do with the memory; 0 is [cu.ReadOnly]. The offer has to allow it.
	// Legacy memory is always [cu.ReadWrite]: see [Attachment.Access].
	Access cu.Access

	// Policy says whose offers are taken; others fail with [sock.ErrNotAdmitted]. The zero Policy admits
	// this process's effective user.
	Policy sock.Policy

	// Timeout bounds each step of a conversation; 0 is 30 s.
	Timeout time.Duration

	// MaxSize refuses offers of more bytes ([ErrTooLarge]), and those that would map 2 MiB more than
	// that or beyond, by chunks that the buffer does not fill. So the rounding up to the device's
	// granularity, which is 2 MiB, does not count. 0 is no bound.
	MaxSize uint64

	// AnyDevice maps the memory on the device that it is on, instead of failing if that is not dev.
	// Legacy memory of a device that is hidden here is opened on dev.
	AnyDevice bool

	// PeerAccess lets dev use memory that is on another device, by peer access: copies and kernels of
	// dev's contexts reach it at [Attachment.Ptr]. It includes AnyDevice. If dev cannot reach the
	// memory, the error is [ErrNoPeer].
	PeerAccess bool

	// Legacy takes legacy memory, too ([Legacy]); without, it is refused ([ErrHandle]). It has no
	// [Attachment.Buffer], can always be written, and is gone when its producer frees it. A producer
	// sends a legacy handle only to a consumer that takes such. LegacyOnly takes nothing else, for a
	// device without virtual memory management.
	Legacy, LegacyOnly bool

	// Reservation is where the memory is mapped: at its beginning. The caller keeps it, and closes it
	// after the attachment. If the memory is larger, the error is [vmm.ErrCapacity]. Attachments in the
	// same reservation, one after the other, have the same address: see [Follow].
	Reservation *vmm.Reservation

	// Reoffer keeps the descriptors of the memory, so that [Attachment.Buffer] can be offered on
	// ([vmm.WithReexport]). So a successor takes memory over from a predecessor that is about to end,
	// without loading it again. It is the same memory, of the same generation. It can be offered with
	// at most the access that it is attached with.
	//
	// The lease tells the predecessor that the memory is in use, also by the successor's consumers. So
	// Close of such an attachment closes the memory first; while the memory is offered, Close fails
	// with [ErrInUse] and changes nothing. The end of the lease, or a [Attachment.Report], takes
	// nothing away from the successor's consumers: the successor decides what to tell them.
	//
	// Legacy memory cannot be offered on ([ErrHandle]): it ends with the process that allocated it.
	Reoffer bool

	// NewerThan takes only an offer whose memory has a larger generation ([vmm.Descriptor]); any other
	// is [ErrStale]. Use it to attach again, after the producer has died or has grown the buffer,
	// without taking known memory for new. The producer is told. Every generation is larger than 0. A
	// buffer that is offered again with other data keeps its generation: use [OfferOptions].Data to
	// tell what the data is.
	NewerThan uint64

	// Wait waits for newer memory where NewerThan alone would fail with [ErrStale]. The producer keeps
	// the consumer waiting while the name stands for older memory, as for a pending offer without
	// memory. The wait is bounded by the time of a step ([ErrTimeout]), which [Offer.ReportProgress]
	// renews. When the older offer ends and no other is being made, the producer refuses
	// ([ErrNotFound]). With a producer that is older than this, Attach fails with ErrStale. Without
	// NewerThan, Wait does nothing.
	Wait bool

	// MaxCursors takes memory of this lease's own ([OfferOptions].CursorSize, [Attachment.Cursors]) of
	// up to that many bytes; more is [ErrTooLarge]. With 0 a producer that gives such memory refuses.
	MaxCursors uint64

	// OnConnected is called with the producer once the connection is made, and OnReceived once the
	// whole offer has arrived; it must not close the files.
	OnConnected func(sock.Peer)
	OnReceived  func(OfferInfo, []*os.File)

	// OnProgress is called when the producer says how far its offer or its data is
	// ([Offer.ReportProgress]), a few times a second at most, on the goroutine of Attach. The numbers
	// are bytes, as the producer gives them: nothing checks them. A producer need not say anything.
	OnProgress func(done, total uint64)

	// The rest is for [Follow] alone.

	// OnWait is called when Follow has waited for a second, for a producer or for another lease, with
	// what is in the way: the error of the last try, such as that nobody listens or that there is no
	// such offer. If a lease was lost or the producer restarts, the error says and matches that, too
	// ([ErrRestarting], [sock.LostError]). It is called again when the error changes. It must not close an attachment of that Follow,
	// and with Overlap there may be several calls at once.
	OnWait func(error)

	// MaxAbsence bounds how long an attachment stays without a lease after its producer was lost or
	// has begun to restart, until a producer offers the same memory again. Then its Context ends. 0 is
	// no bound: what is mapped stays good.
	MaxAbsence time.Duration

	// Overlap maps each version beside the one before, instead of after it. The body takes the
	// attachment over and returns; Follow calls it again when there is newer memory. So a server warms
	// the new version up and checks it, swaps, and closes the old one when no request uses it any more:
	//
	//	for att, err := range share.Follow(ctx, path, "weights", dev, &share.AttachOptions{Overlap: true}) {
	//		if err != nil {
	//			return err
	//		}
	//		if err := check(att); err != nil { // refused: the server goes on with the old one
	//			log.Print(err, att.Report(ctx, err), att.Close())
	//			continue
	//		}
	//		if err := current.Swap(att); err != nil { // a Current, which closes the old one behind its last request
	//			return err
	//		}
	//	}
	//
	// A version that the body has closed is not given again. The [Attachment.Context] of an older one
	// goes on when it is superseded. Follow closes what the body has not closed when the loop ends, behind its
	// last pair, which is the error: nothing may use the memory any more then, but what a [Current] holds. A
	// Reservation has room for one version, and cannot be used. The device needs room for both versions, and
	// for one more where one that was refused stays offered.
	Overlap bool

	peer func(*serve.PeerOptions) // tests'
}

// attachOptions are those of one attachment.
type attachOptions struct {
	AttachOptions
	conn   serve.PeerOptions
	within context.Context // of the Follow whose attachment it is, or nil
}

// follows reports whether the attachment is one of Follow.
func (o *attachOptions) follows() bool { return o.within != nil }

// quiet drops the application's functions, for a lease that it need not hear of.
func (o *attachOptions) quiet() {
	o.OnConnected, o.OnReceived, o.OnProgress = func(sock.Peer) {}, func(OfferInfo, []*os.File) {}, func(_, _ uint64) {}
}

// onlyFollows returns an error for what Attach alone cannot do.
func (o *attachOptions) onlyFollows() error {
	if o.OnWait != nil || o.MaxAbsence != 0 || o.Overlap {
		return errors.New("share: OnWait, MaxAbsence and Overlap are for Follow: Attach does not wait for other producers or versions")
	}
	return nil
}

func newAttachOptions(opts *AttachOptions) (*attachOptions, error) {
	o := &attachOptions{conn: serve.NewPeerOptions()}
	o.quiet()
	if opts == nil {
		opts = &AttachOptions{}
	}
	connected, received, progress := o.OnConnected, o.OnReceived, o.OnProgress
	o.AttachOptions = *opts
	if o.OnConnected == nil {
		o.OnConnected = connected
	}
	if o.OnReceived == nil {
		o.OnReceived = received
	}
	if o.OnProgress == nil {
		o.OnProgress = progress
	}
	if o.Access == 0 {
		o.Access = cu.ReadOnly
	}
	o.AnyDevice, o.Legacy = o.AnyDevice || o.PeerAccess, o.Legacy || o.LegacyOnly
	switch {
	case o.Reoffer && o.Legacy:
		return nil, fmt.Errorf("%w: both Reoffer and Legacy: legacy memory cannot be offered on", ErrHandle)
	case o.Overlap && o.Reservation != nil:
		return nil, errors.New("share: both Overlap and Reservation: two versions cannot be mapped at one address")
	case o.MaxAbsence < 0:
		return nil, fmt.Errorf("share: a MaxAbsence of %v: want 0, which is no bound, or more", o.MaxAbsence)
	}
	if err := wire.CheckAccess(o.Access); err != nil {
		return nil, err
	}
	return o, setPeer(&o.conn, o.Timeout, o.Policy, o.peer)
}

// capabilities returns what this side tells the producer that it takes.
func (o *attachOptions) capabilities() wire.Capabilities {
	takes := wire.TakesData
	if o.Legacy {
		takes |= wire.TakesLegacy
	}
	if o.MaxCursors > 0 {
		takes |= wire.TakesCursors
	}
	return takes
}

// after returns the generation that the awaited memory must exceed, or 0.
func (o *attachOptions) after() uint64 {
	if !o.Wait {
		return 0
	}
	return o.NewerThan
}

// suits checks that m is the offer that was asked for.
func (o *attachOptions) suits(m wire.Offer, name string) error {
	switch generation := m.Memory.Generation; {
	case name != "" && name != m.Name:
		return fmt.Errorf("%w: %q was offered where %q was asked for", serve.ErrUnexpected, m.Name, name)
	case m.Legacy != nil && !o.Legacy:
		return fmt.Errorf("%w: %q is legacy memory, which this side does not take", ErrHandle, m.Name)
	case m.Legacy == nil && o.LegacyOnly:
		return fmt.Errorf("%w: %q is offered by descriptors, and this side takes legacy memory alone", ErrHandle, m.Name)
	case o.NewerThan != 0 && generation <= o.NewerThan:
		return fmt.Errorf("%w: %q is of generation %d, and one above %d was asked for", ErrStale, m.Name, generation, o.NewerThan)
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
	case m.CursorSize > o.MaxCursors:
		return fmt.Errorf("%w: %d bytes of cursors; want %d at most", ErrTooLarge, m.CursorSize, o.MaxCursors)
	case o.MaxSize > 0 && (d.Size > o.MaxSize || !ok || size-min(size, o.MaxSize) >= granule):
		return fmt.Errorf("%w: %d bytes in %s of %d; want %d bytes at most", ErrTooLarge, d.Size, plain.Count(d.Chunks, "chunk"), d.ChunkSize, o.MaxSize)
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
