package share

import (
	"fmt"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
)

// EventKind says what an [Event] tells.
type EventKind int

// What a producer is told. An offer begins with Offered. A lease goes through
// Connected, Sent, Mapped, any number of Progress, Verdict where one is given,
// and Ended; one that fails leaves out what did not happen. With an offer that was
// prepared, leases may begin, and end, before Offered, up to Sent. PeerRefused may come
// at any time.
const (
	Offered     EventKind = iota + 1 // there are descriptors, and consumers get them when this is told
	Connected                        // a consumer was admitted
	Sent                             // it was sent the descriptors
	Mapped                           // it has mapped the memory
	Progress                         // it is at work
	Verdict                          // it reported; Err is nil or a *VerdictError
	Ended                            // the lease is over; Err says why if not by the consumer's will
	PeerRefused                      // a peer was turned away; it has no lease
)

// String gives the kind's name.
func (k EventKind) String() string {
	names := [...]string{"Offered", "Connected", "Sent", "Mapped", "Progress", "Verdict", "Ended", "PeerRefused"}
	if k < 1 || int(k) > len(names) {
		return fmt.Sprintf("EventKind(%d)", int(k))
	}
	return names[k-1]
}

// An Event is something that happened to an offer.
type Event struct {
	Kind   EventKind
	Lease  int           // number of the lease within the offer, from 1; 0 where there is none
	Peer   sock.Peer     // who
	Access cu.Access     // [Lease.Access]
	Since  time.Duration // since the lease began
	Done   uint64        // for Progress: bytes, or whatever the consumer counts
	Total  uint64        // for Progress
	Err    error         // for Verdict, Ended and PeerRefused: what was wrong, or nil
}
