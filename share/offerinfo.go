package share

import (
	"bytes"
	"os"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Version is the version of the wire format that this package speaks.
const Version = wire.Version

// MaxData is how many bytes of application data an offer may carry.
const MaxData = serve.MaxData

// An OfferInfo is what a producer says of the memory that it offers.
type OfferInfo struct {
	Name       string
	Descriptor vmm.Descriptor
	Access     cu.Access // the most that may be asked for
	Data       []byte    // the application's own; see [ListenOptions].Authorize for where it is nil
	Producer   sock.Peer

	// AwaitsRelease: before it uses the memory again, the producer waits until consumers
	// that may write have released it or died ([OfferOptions].Fence). Such a consumer should close
	// the attachment as soon as it is [Attachment.Superseded] or Done.
	AwaitsRelease bool

	// Legacy is the handle of legacy memory, or nil if descriptors came. If it is set, the
	// Descriptor's ChunkSize is the size of the whole allocation, and its granularity is 0.
	Legacy *gpumem.LegacyHandle
}

func cloneHandle(h *gpumem.LegacyHandle) *gpumem.LegacyHandle {
	if h == nil {
		return nil
	}
	return new(*h)
}

// infoOf returns what this process would offer.
func infoOf(r wire.Offer, access cu.Access) OfferInfo {
	return OfferInfo{
		Name: r.Name, Descriptor: r.Memory, Access: access, Data: bytes.Clone(r.Data), Legacy: cloneHandle(r.Legacy),
		Producer: sock.Peer{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), PID: int32(os.Getpid())},
	}
}
