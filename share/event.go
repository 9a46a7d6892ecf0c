package share

import (
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/sock"
)

// EventKind says what an [Event] tells.
type EventKind int

// The kinds of events. A lease goes through Connected, Sent, Mapped, any number of Progress,
// Verdict if the consumer reports, or any number of Detached, and Ended; a lease that fails skips what did not happen.
const (
	Connected = EventKind(serve.Connected) // a consumer was admitted
	Sent      = EventKind(serve.Sent)      // the consumer was sent the descriptors
	Mapped    = EventKind(serve.Mapped)    // the consumer has mapped the memory
	Progress  = EventKind(serve.Progress)  // the consumer is at work
	Verdict   = EventKind(serve.Verdict)   // the consumer reported; Err is nil or ErrVerdict
	Ended     = EventKind(serve.Ended)     // the lease is over; Err says why, and is nil if the consumer left in order
	Detached  = EventKind(serve.Detached)  // the consumer has unmapped the memory, and keeps its lease ([Attachment.Detach])
)

// String returns the kind's name.
func (k EventKind) String() string { return serve.EventKind(k).String() }

// An Event is something that happened to an offer.
type Event struct {
	Kind   EventKind
	Lease  int           // number of the lease within the offer, from 1
	Peer   sock.Peer     // the consumer
	Access cu.Access     // [Lease.Access]
	Since  time.Duration // since the lease began
	Done   uint64        // for Progress: bytes, or whatever the consumer counts
	Total  uint64        // for Progress
	Err    error         // for Verdict and Ended: what was wrong, or nil
}

func eventOf(e serve.Event) Event {
	return Event{EventKind(e.Kind), e.Lease, e.Peer, e.Access, e.Since, e.Done, e.Total, e.Err}
}
