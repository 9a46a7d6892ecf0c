package share

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Version is the version of the wire format that this package speaks.
const Version = wire.Version

// MaxData is how many bytes of application data an offer may carry.
const MaxData = serve.MaxData

// A HandleType says by what kind of handle offered memory is opened.
type HandleType = wire.HandleType

// The types of handles.
const (
	HandleFD     = wire.HandleFD     // file descriptors: virtual memory, of package vmm
	HandleLegacy = wire.HandleLegacy // 64 bytes of legacy IPC, see [Legacy]
)

// A LegacyHandle is the handle of an offer without descriptors.
type LegacyHandle = wire.LegacyHandle

// An Offer is what a producer says of the memory that it offers.
type Offer struct {
	Name       string
	Descriptor vmm.Descriptor
	Access     cu.Access // the most that may be asked for
	Data       []byte    // the application's own; see [WithAuthorize] for where it is nil
	Producer   sock.Peer

	// AwaitsRelease: before it uses the memory again, the producer waits until consumers
	// that may write have released it or died ([WithFence]). Such a consumer should close
	// the attachment as soon as it is [Attachment.Superseded] or Done.
	AwaitsRelease bool

	// Legacy is the handle of legacy memory, or nil if descriptors came. If it is set, the
	// Descriptor's ChunkSize is the size of the whole allocation, and its granularity is 0.
	Legacy *LegacyHandle
}

// Handle returns the type of handle that opens the memory.
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

// offerOf returns what this process would offer.
func offerOf(r wire.Offer, access cu.Access) Offer {
	return Offer{
		Name: r.Name, Descriptor: r.Memory, Access: access, Data: bytes.Clone(r.Data), Legacy: cloneHandle(r.Legacy),
		Producer: sock.Peer{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), PID: int32(os.Getpid())},
	}
}

// Offer offers buf under name and serves consumers. access is the most that a consumer
// may ask for. Offer returns when ctx is done, which is no error; when an option ends it;
// or when another offer has taken its name ([Server.Replace]) and its last consumer has
// left.
//
// Offer offers buf as it is now. To offer what it grows by later, offer it again: that
// offer has a larger generation ([vmm.Descriptor]). Before it serves the first consumer,
// Offer waits for the work that is queued in the primary contexts of the devices that can use
// the memory ([vmm.Buffer.Users]), unless [WithSynchronized]. The caller keeps buf, which
// cannot be closed before Offer returns ([vmm.ErrInUse]). Offer keeps no descriptors when it
// returns.
//
// Memory of another process can be offered on, with at most the access that it was
// attached with: see [WithReoffer].
//
// When the offer ends, consumers that are still attached are told ([ErrRevoked]) and
// disconnected; they keep what they have mapped.
//
// Errors: what ended ctx during the wait for work; [ErrNoConsumer]; [ErrNameTaken];
// those of [vmm.Buffer.Lend]; a socket that fails; an invalid option.
func (s *Server) Offer(ctx context.Context, name string, buf *vmm.Buffer, access cu.Access, opts ...OfferOption) error {
	terms, err := newOfferOptions(opts)
	if err != nil {
		return err
	}
	return s.server().Offer(ctx, name, bufferSource{s, buf}, access, terms)
}

// bufferSource is virtual memory, which lives as long as its descriptors.
type bufferSource struct {
	server *Server
	buf    *vmm.Buffer
}

func (b bufferSource) Lend(o *serve.Offering) (serve.Loan, error) {
	if b.buf == nil {
		return serve.Loan{}, errors.New("share: no buffer to offer (nil)")
	}
	l, err := b.buf.Lend()
	if err != nil {
		return serve.Loan{}, err
	}
	if most := l.Access; o.Record.Access > most {
		_ = l.Close()
		return serve.Loan{}, fmt.Errorf("%w for %s: it is another process' and was attached %s", vmm.ErrNotShareable, o.Record.Access, most)
	}
	return serve.Loan{Memory: l.Descriptor, Files: l.Files, End: func() { _ = l.Close() }}, nil
}

func (b bufferSource) Synchronize(ctx context.Context) error {
	return synchronize(ctx, b.buf)
}

// synchronize waits for the work of all devices that can use buf.
func synchronize(ctx context.Context, buf *vmm.Buffer) error {
	for _, dev := range buf.Users() {
		if err := dev.Synchronize(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b bufferSource) Process() wire.ProcessFlags { return b.server.knownFlags(b.buf.Device()) }
func (b bufferSource) Identity() any              { return b.buf }
func (bufferSource) Vouch() error                 { return nil }
