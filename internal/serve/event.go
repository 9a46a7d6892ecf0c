package serve

import (
	"fmt"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/sock"
)

// EventKind says what an [Event] tells.
type EventKind int

// The kinds of events. A lease goes through Connected, Sent, Mapped, any number of Progress, Verdict if
// the consumer reports, or any number of Detached, and Ended; a lease that fails skips what did not happen.
const (
	Connected EventKind = iota + 1 // a consumer was admitted
	Sent                           // the consumer was sent the descriptors
	Mapped                         // the consumer has mapped the memory
	Progress                       // the consumer is at work
	Verdict                        // the consumer reported; Err is nil or a *VerdictError
	Ended                          // the lease is over; Err says why, and is nil if the consumer left in order
	Detached                       // the consumer has unmapped the memory, and keeps its lease
)

// String returns the kind's name.
func (k EventKind) String() string {
	names := [...]string{"Connected", "Sent", "Mapped", "Progress", "Verdict", "Ended", "Detached"}
	if k < 1 || int(k) > len(names) {
		return fmt.Sprintf("EventKind(%d)", int(k))
	}
	return names[k-1]
}

// An Event is something that happened to an offer.
type Event struct {
	Kind   EventKind
	Lease  int           // number of the lease within the offer, from 1
	Peer   sock.Peer     // the consumer
	Access gpumem.Access // [Lease.Access]
	Since  time.Duration // since the lease began
	Done   uint64        // for Progress: bytes, or whatever the consumer counts
	Total  uint64        // for Progress
	Err    error         // for Verdict and Ended: what was wrong, or nil
}
