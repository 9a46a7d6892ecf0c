package share

import (
	"errors"

	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/vmm"
)

// Errors of this package. Those of the socket are package sock's, those about
// the memory package vmm's and cu's.
var (
	// ErrWire matches every error about a record that is not as docs/wire.md says.
	ErrWire = wire.ErrMalformed
	// ErrUnsupported says that the peer uses a feature that this side does not know and
	// must not ignore.
	ErrUnsupported = wire.ErrUnsupported
	// ErrVersion says that the peer speaks another version of the wire format.
	ErrVersion = wire.ErrVersion
	// ErrRefused matches every [*RefusalError].
	ErrRefused = serve.ErrRefused
	// ErrWithdrawn says that the producer has ended the offer and given its name up.
	ErrWithdrawn = serve.ErrWithdrawn
	// ErrSuperseded says that the producer offers other memory in this place: see
	// [Attachment.Superseded]. With it the context of an attachment of [Follow] ends then, and
	// a lease ends that outlasts the grace ([OfferOptions].Grace) or the offer of its version.
	ErrSuperseded = serve.ErrSuperseded
	// ErrRevoked says that the producer took this lease back. The producer's words follow.
	ErrRevoked = serve.ErrRevoked
	// ErrRestarting says that the producer ends for a successor ([Server.Shutdown]): the memory
	// stays good, and the name comes back.
	ErrRestarting = serve.ErrRestarting
	// ErrProtocol says that the peer sent a record where another one belongs.
	ErrProtocol = serve.ErrProtocol
	// ErrTimeout says that a peer took too long over a step.
	ErrTimeout = serve.ErrTimeout
	// ErrNoConsumer says that no consumer came in time.
	ErrNoConsumer = serve.ErrNoConsumer
	// ErrVerdict matches every [*VerdictError].
	ErrVerdict = serve.ErrVerdict
	// ErrNoVerdict says that a consumer left without its verdict ([OfferOptions].Verdict).
	ErrNoVerdict = serve.ErrNoVerdict
	// ErrNameTaken says that the server has an offer of that name already.
	ErrNameTaken = serve.ErrNameTaken
	// ErrStale says that the offer is not newer than [AttachOptions].NewerThan demands, or that the
	// offer is of other memory than is mapped here ([Attachment.Resume]).
	ErrStale = serve.ErrStale
	// ErrRate says that the peer sent more records a second than are taken.
	ErrRate = serve.ErrRate
	// ErrTooLarge says that an offer, or a list of offers, is larger than this side accepts.
	ErrTooLarge = errors.New("share: larger than this side accepts")
	// ErrHandle says that the memory is offered by a handle of a type that this side does
	// not take.
	ErrHandle = errors.New("share: the memory is offered by another type of handle")
	// ErrNoPeer says that one device cannot use memory of another ([AttachOptions].PeerAccess).
	ErrNoPeer = errors.New("share: no peer access")
	// ErrClosed says that the server or attachment was closed.
	ErrClosed = serve.ErrClosed
)

// ErrInUse says that memory cannot be freed because it is offered, or because streams
// may still have to signal or wait there ([Counter]). It is [vmm.ErrInUse]; for legacy
// memory the error is an [*InUseError].
var ErrInUse = vmm.ErrInUse

// ErrMemoryGone says that offered legacy memory was freed behind this package's back.
var ErrMemoryGone = serve.ErrMemoryGone

// RefusalCode says why a peer refused.
type RefusalCode = wire.RefusalCode

// The codes of a refusal.
const (
	RefusedName        = wire.RefusedName        // there is no offer of that name
	RefusedAccess      = wire.RefusedAccess      // more access than the offer gives
	RefusedKind        = wire.RefusedKind        // drivers of different kinds
	RefusedBusy        = wire.RefusedBusy        // all places are taken, or too many descriptors are in flight
	RefusedVersion     = wire.RefusedVersion     // other version of the wire format
	RefusedRecord      = wire.RefusedRecord      // malformed or unexpected record
	RefusedTimeout     = wire.RefusedTimeout     // too long over a step
	RefusedPolicy      = wire.RefusedPolicy      // the peer is not one that is admitted
	RefusedRate        = wire.RefusedRate        // too many records a second
	RefusedUnsupported = wire.RefusedUnsupported // a record, field, flag or handle that the peer does not know
	RefusedStale       = wire.RefusedStale       // the name stands for other memory than was to be resumed
	RefusedParts       = wire.RefusedParts       // what has that name is offered in parts, each by a name of its own
)

// A RefusalError says that the peer refused, and why: its Code, and in Text the peer's words. It
// matches [ErrRefused], and [ErrUnsupported] and [ErrStale] for those codes.
type RefusalError = serve.RefusalError

// A VerdictError is the error that a consumer reported, its words in Text. It matches [ErrVerdict].
type VerdictError = serve.VerdictError

// ErrStillOpen matches every [*StillOpenError].
var ErrStillOpen = serve.ErrStillOpen

// A StillOpenError names consumers that may still have legacy memory open: their leases
// have ended, and they did not say in time that they have closed it. Freeing the memory
// harms only them: what they find there then is undefined. Peers has each once, 64 at most, and
// More counts the leases of others; After is how long they had. It matches [ErrStillOpen].
type StillOpenError = serve.StillOpenError

// A Fence says how sure it is that a peer's work on the memory has ended, after its lease
// has. The end of a lease alone says nothing: the kernel of a killed process goes on
// writing for milliseconds after the connection has ended.
type Fence = serve.Fence

// The fences. Fenced is the stronger one: a wait for Released accepts it, too.
const (
	// Released: the peer has promised that nothing of its own uses the memory any more.
	Released = serve.Released
	// Fenced: the connection is over, and the process that made it has died, so nothing
	// of it runs on the device any more. Other processes that it forked, or to which it
	// passed descriptors, may still use the memory.
	Fenced = serve.Fenced
)

// ErrNoFence says that no wait can tell when a peer's work on the memory has ended. A
// [*FenceError] says why: the peer may run under MPS, where its work outlives it; the peer
// is older and does not say whether it does; the kernel gives no descriptor of its process;
// or the process is not watched any more.
var ErrNoFence = serve.ErrNoFence

// A FenceError names the peers whose work on the memory may go on: Peers has each once, 64 at most, and
// More counts the leases of others. Want is the fence that was waited for. Err is what ended the wait; it
// matches [ErrNoFence] where that had no end.
type FenceError = serve.FenceError

// A LostError says that a peer's connection has ended without a farewell: the peer was
// killed or has failed. Peer is that peer, and Err what the connection failed with. It matches
// [sock.ErrPeerLost]. Its method Died reports whether the peer's process has died, and waits for that for half
// a second at most.
type LostError = serve.LostError

// MaxNotice is the longest notice, in bytes.
const MaxNotice = serve.MaxNotice

// DefaultTimeout bounds each step of a conversation unless an option says
// otherwise.
const DefaultTimeout = serve.DefaultTimeout
