package share

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Version is the version of the wire format that this package speaks.
const Version = 1

// MaxData is how many bytes of application data an offer may carry.
const MaxData = 64 << 20

const maxFDs = sock.MaxFDs

// A HandleType says what offered memory is opened by.
type HandleType = wire.HandleType

// The types of handles.
const (
	HandleFD     HandleType = 1 // file descriptors: virtual memory, of package vmm
	HandleLegacy HandleType = 2 // 64 bytes of legacy IPC, see [Legacy]
)

// A LegacyHandle is what the memory of an offer is opened by that carries no
// descriptors.
type LegacyHandle = wire.LegacyHandle

// An Offer is what a producer says of the memory it offers.
type Offer struct {
	Name       string
	Descriptor vmm.Descriptor
	Access     cu.Access // the most that may be asked for
	Data       []byte    // the application's own; see [WithAuthorize] for where it is nil
	Producer   sock.Peer

	// AwaitsRelease: the producer does not use the memory again before who may write it has
	// released it or died ([WithFence]). Who may, closes the attachment as soon as it is
	// [Attachment.Superseded] or Done.
	AwaitsRelease bool

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

func cloneHandle(h *LegacyHandle) *LegacyHandle {
	if h == nil {
		return nil
	}
	return new(*h)
}

// Offer offers buf under name and serves consumers until ctx is done, which is
// no error, an option ends it, or another offer has taken its name ([Server.Replace]) and
// its last consumer has left. access is the most a consumer may ask for. What is
// offered is buf as it is now: what it grows by later takes another Offer, which has a
// larger generation ([vmm.Descriptor]).
// Before the first consumer is answered, the work queued in the primary context
// of the memory's device is waited for, unless [WithSynchronized]. Offer keeps
// no descriptors when it returns; buf stays the caller's, and its Close is
// [vmm.ErrInUse] until then.
//
// Memory of another process can be offered on: that of an [Attachment] made
// [WithReoffer], with no more access than that has.
//
// When it ends, consumers that are still attached are told ([ErrRevoked]) and
// disconnected; what they have mapped they keep.
//
// Errors: what ended ctx while that work was waited for; [ErrNoConsumer];
// [ErrNameTaken]; what [vmm.Buffer.Lend] says; a socket that fails; an option that
// makes no sense.
func (s *Server) Offer(ctx context.Context, name string, buf *vmm.Buffer, access cu.Access, opts ...OfferOption) error {
	o, err := s.newOffering(name, bufferSource{buf}, access, opts)
	if err != nil {
		return err
	}
	return o.serve(ctx)
}

// A source is memory that can be offered: of one kind or another.
type source interface {
	lend(o *offering) (loan, error)        // keeps the memory until the loan's end
	synchronize(ctx context.Context) error // waits for work on it
	device() *cu.Device                    // whose memory it is
	vouch() error                          // says whether it is still what was lent
}

// A loan is what an offering has of its memory.
type loan struct {
	memory vmm.Descriptor
	handle *LegacyHandle // or nil, where there are
	files  []*os.File    // one per chunk, the buffer's
	end    func()
}

// bufferSource is virtual memory, which its descriptors keep.
type bufferSource struct{ buf *vmm.Buffer }

func (b bufferSource) lend(o *offering) (loan, error) {
	if b.buf == nil {
		return loan{}, errors.New("share: no buffer to offer (nil)")
	}
	l, err := b.buf.Lend()
	if err != nil {
		return loan{}, err
	}
	if most := l.Access; o.record.Access > most {
		_ = l.Close()
		return loan{}, fmt.Errorf("%w for %s: it is another process' and was attached %s", vmm.ErrNotShareable, o.record.Access, most)
	}
	return loan{memory: l.Descriptor, files: l.Files, end: func() { _ = l.Close() }}, nil
}

func (b bufferSource) synchronize(ctx context.Context) error {
	return b.buf.Device().Synchronize(ctx)
}

func (b bufferSource) device() *cu.Device { return b.buf.Device() }
func (bufferSource) vouch() error         { return nil }
