package serve

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/wire"
)

// Errors of this package. Those of the socket are package sock's, those about
// the memory package vmm's and cu's.
var (
	// ErrRefused matches every RefusalError; those of the codes match the next ones, too.
	ErrRefused = errors.New("share: refused by the peer")
	// ErrNotFound says that there is no offer of that name.
	ErrNotFound = errors.New("share: there is no such offer")
	// ErrParts says that what has that name is offered in parts.
	ErrParts = errors.New("share: it is offered in parts")
	// ErrAccess says that the offer does not give the access that was asked for.
	ErrAccess = errors.New("share: more access than is offered")
	// ErrDenied says that the peer does not admit this process.
	ErrDenied = errors.New("share: not admitted")
	// ErrBusy says that the peer has no place, or too many descriptors in flight.
	ErrBusy = errors.New("share: the peer is busy")
	// ErrWithdrawn says that the producer has ended the offer and given its name up.
	ErrWithdrawn = errors.New("share: withdrawn by the producer")
	// ErrSuperseded says that the producer offers other memory in this place.
	ErrSuperseded = errors.New("share: the producer offers newer memory")
	// ErrRevoked says that the producer took this lease back; its words follow.
	ErrRevoked = errors.New("share: revoked by the producer")
	// ErrRestarting says that the producer ends for a successor.
	ErrRestarting = errors.New("share: the producer is restarting")
	// ErrUnexpected says that the peer sent a record where another one belongs.
	ErrUnexpected = plain.ErrorOf("share: unexpected record", wire.ErrProtocol)
	// ErrTimeout says that a peer took too long over a step.
	ErrTimeout = errors.New("share: the peer took too long")
	// ErrNoConsumer says that no consumer came in time.
	ErrNoConsumer = errors.New("share: no consumer came in time")
	// ErrVerdict matches every VerdictError.
	ErrVerdict = errors.New("share: the consumer reported an error")
	// ErrNoVerdict says that a consumer left without its verdict (OfferOptions.Verdict).
	ErrNoVerdict = errors.New("share: the consumer left without a verdict")
	// ErrNameTaken says that the server has an offer of that name already.
	ErrNameTaken = errors.New("share: an offer of this name exists")
	// ErrStale says that the offer is not newer than AttachOptions.NewerThan demands, or that the
	// offer is of other memory than is mapped here (Attachment.Resume).
	ErrStale = errors.New("share: the offer is not newer than what is known already")
	// ErrRate says that the peer sent more records a second than are taken.
	ErrRate = plain.ErrorOf("share: too many records a second", wire.ErrProtocol)
	// ErrClosed says that something was closed. It is gpumem.ErrClosed.
	ErrClosed = gpumem.ErrClosed
	// errServerClosed says that the server was.
	errServerClosed = plain.ErrorOf("share: the server was closed", ErrClosed)
	// errNoOffer says that an offer is nil or zero, and errNoLease that a lease is.
	errNoOffer = plain.ErrorOf("share: no offer, or an offer that is over", ErrClosed)
	errNoLease = plain.ErrorOf("share: no lease, or a lease that is over", ErrClosed)
)

// ErrInUse says that memory cannot be freed because it is offered, or held, as by a counter.
// It is gpumem.ErrInUse; for legacy memory the error is a *share.InUseError.
var ErrInUse = gpumem.ErrInUse

// ErrMemoryGone says that offered legacy memory was freed behind this package's back.
var ErrMemoryGone = errors.New("share: the memory that is offered is not there any more")

// A RefusalError says that the peer refused, and why.
type RefusalError struct {
	Code wire.RefusalCode
	Text string // the peer's words
}

// Error returns the code and the peer's words.
func (e *RefusalError) Error() string {
	return fmt.Sprintf("refused by the peer (%s): %s", e.Code, printable(e.Text))
}

// Is matches [ErrRefused], and what the code says.
func (e *RefusalError) Is(target error) bool { return target == ErrRefused || target == codes[e.Code] }

// codes are what refusals match.
var codes = map[wire.RefusalCode]error{
	wire.RefusedName: ErrNotFound, wire.RefusedAccess: ErrAccess, wire.RefusedKind: gpumem.ErrKind, wire.RefusedBusy: ErrBusy,
	wire.RefusedVersion: wire.ErrUnsupported, wire.RefusedRecord: wire.ErrProtocol, wire.RefusedTimeout: ErrTimeout, wire.RefusedPolicy: ErrDenied,
	wire.RefusedRate: wire.ErrProtocol, wire.RefusedUnsupported: wire.ErrUnsupported, wire.RefusedStale: ErrStale, wire.RefusedParts: ErrParts,
}

// RevokedError returns the error of a REVOKE.
func RevokedError(r wire.Revoke) error {
	switch r.Reason {
	case wire.EndWithdrawn:
		return ErrWithdrawn
	case wire.EndSuperseded:
		return ErrSuperseded
	case wire.EndRestarting:
		return ErrRestarting
	}
	if r.Text == "" {
		return ErrRevoked
	}
	return fmt.Errorf("%w: %s", ErrRevoked, printable(r.Text))
}

// IsEnded reports whether err says that the producer has ended the lease, for whichever reason.
func IsEnded(err error) bool {
	for _, end := range []error{ErrWithdrawn, ErrSuperseded, ErrRevoked, ErrRestarting} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// A VerdictError is the error that a consumer reported.
type VerdictError struct {
	Text string // the consumer's words
}

// Error returns the consumer's words.
func (e *VerdictError) Error() string { return "the consumer reports: " + printable(e.Text) }

// Is matches [ErrVerdict].
func (e *VerdictError) Is(target error) bool { return target == ErrVerdict }

// printable returns a peer's text on one line, without characters that could harm a
// terminal.
func printable(s string) string { return plain.Text(strings.ReplaceAll(s, "\n", "; ")) }
