package share

import (
	"errors"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/vmm"
)

// Errors of this package. Those of the socket are package sock's, those about
// the memory package vmm's and cu's.
var (
	// ErrRefused says that the peer refused; its words follow. Where another error of this package
	// says why, it matches that, too: ErrNotFound, ErrParts, ErrAccess, ErrDenied, ErrBusy, ErrStale,
	// ErrTimeout (this side took too long over a step), ErrUnsupported, ErrProtocol, [vmm.ErrKind].
	ErrRefused = serve.ErrRefused
	// ErrNotFound says that there is no offer of that name.
	ErrNotFound = serve.ErrNotFound
	// ErrParts says that what has that name is offered in parts, each by a name of its own, which
	// the error names.
	ErrParts = serve.ErrParts
	// ErrAccess says that the offer does not give the access that was asked for.
	ErrAccess = serve.ErrAccess
	// ErrDenied says that the peer does not admit this process.
	ErrDenied = serve.ErrDenied
	// ErrBusy says that all places are taken, or that too many descriptors are in flight.
	ErrBusy = serve.ErrBusy
	// ErrUnsupported says that the peer uses what this side does not know and must not ignore, or
	// speaks another version of the wire format.
	ErrUnsupported = wire.ErrUnsupported
	// ErrProtocol says that the peer broke the protocol: it sent a record that is not as docs/wire.md
	// says, one where another one belongs, or too many a second.
	ErrProtocol = wire.ErrProtocol
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
	// ErrTimeout says that a peer took too long over a step.
	ErrTimeout = serve.ErrTimeout
	// ErrNoConsumer says that no consumer came in time.
	ErrNoConsumer = serve.ErrNoConsumer
	// ErrVerdict says that the consumer reported an error, whose words follow.
	ErrVerdict = serve.ErrVerdict
	// ErrNoVerdict says that a consumer left without its verdict ([OfferOptions].Verdict).
	ErrNoVerdict = serve.ErrNoVerdict
	// ErrNameTaken says that the server has an offer of that name already.
	ErrNameTaken = serve.ErrNameTaken
	// ErrStale says that the offer is not newer than [AttachOptions].NewerThan demands, or that the
	// offer is of other memory than is mapped here ([Attachment.Resume]).
	ErrStale = serve.ErrStale
	// ErrTooLarge says that an offer, or a list of offers, is larger than this side accepts.
	ErrTooLarge = errors.New("share: larger than this side accepts")
	// ErrHandle says that the memory is offered by a handle of a type that this side does
	// not take.
	ErrHandle = errors.New("share: the memory is offered by another type of handle")
	// ErrNoPeer says that one device cannot use memory of another ([AttachOptions].PeerAccess).
	ErrNoPeer = errors.New("share: no peer access")
	// ErrClosed says that the server or attachment was closed. It is [gpumem.ErrClosed].
	ErrClosed = serve.ErrClosed

	// errClosed says that the attachment was, and errNoOffer that an offer is nil or zero.
	errClosed   = plain.ErrorOf("share: the attachment was closed", ErrClosed)
	errReported = plain.ErrorOf("share: the lease is over: the producer has read this side's verdict", ErrClosed)
	errNoOffer  = plain.ErrorOf("share: no offer, or an offer that is over", ErrClosed)
)

// ErrInUse says that memory cannot be freed because it is offered, or held, as by a counter
// ([vmm.Buffer.Hold]). It is [vmm.ErrInUse].
var ErrInUse = vmm.ErrInUse

// ErrMemoryGone says that offered legacy memory was freed behind this package's back.
var ErrMemoryGone = serve.ErrMemoryGone

// ErrStillOpen says that consumers, which the error names, may still have legacy memory open: their
// leases have ended, and they did not say in time that they have closed it. Freeing the memory harms
// only them: what they find there then is undefined.
var ErrStillOpen = serve.ErrStillOpen

// MaxNotice is the longest notice, in bytes.
const MaxNotice = serve.MaxNotice
