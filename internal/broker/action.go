package broker

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpufd/gpufd/internal/wire"
)

// A Reason says why a session has ended.
type Reason int

const (
	Withdrawn  Reason = iota + 1 // its offer has ended, and the name is given up
	Superseded                   // other memory has the name, and the time of the older is over
	Revoked                      // its lease was taken back
	Restarting                   // the offer's maker ends for a successor
	Left                         // it left in order
	Lost                         // its connection ended without a farewell
	Judged                       // it gave its verdict
	Failed                       // it broke the protocol, took too long, could not attach or be served
)

var reasons = []string{"", "withdrawn", "superseded", "revoked", "restarting", "left", "lost", "judged", "failed"}

// String returns the reason as the tables have it.
func (r Reason) String() string { return reasons[r] }

// UnmarshalText reads what String returns.
func (r *Reason) UnmarshalText(text []byte) error {
	i := slices.Index(reasons, string(text))
	if i < 0 {
		return fmt.Errorf("broker: there is no reason %q", text)
	}
	*r = Reason(i)
	return nil
}

// An Action is something for the caller to do. To returns the session that it is for, or 0.
type Action interface{ To() SessionID }

// Actions for one session.
type (
	// Consult asks the application whether a session may have an offer. Answer follows.
	Consult struct {
		Session SessionID
		Offer   OfferID
	}

	// Wait says that a session waits, and nothing is to be sent now.
	Wait struct{ Session SessionID }

	// Progress tells a session that waits how far its offer is. It may be left out where sending
	// would block.
	Progress struct {
		Session     SessionID
		Done, Total uint64
	}

	// Grant tells the application of a lease, and then sends the offer: without its data if
	// Pending, and without descriptors if the session resumes.
	Grant struct {
		Session SessionID
		Offer   OfferID
		Number  int // of the lease within its offer, from 1
		Pending bool
	}

	// Complete tells a session that the data is there.
	Complete struct{ Session SessionID }

	// Newer tells a session that memory of another generation has the place of its own.
	Newer struct {
		Session    SessionID
		Generation uint64
	}

	// Confirm says that a session has mapped the memory. A session with legacy memory waits to hear it.
	Confirm struct{ Session SessionID }

	// Refuse ends a session that has no lease. Denied: its code and text are the application's.
	Refuse struct {
		Session SessionID
		Denied  bool
		Because wire.Refuse
	}

	// End ends a session. If it has a lease, Gone is to follow.
	End struct {
		Session SessionID
		Reason  Reason
		Served  bool // it was told that the data is there
		Mapped  bool
	}
)

// Peers are some of the peers that something is true of.
type Peers struct {
	List []Peer // each once, MaxPeers at most
	More int    // sessions of others
}

// MaxPeers bounds the list: an offer may go on for as long as the machine.
const MaxPeers = 64

func (p *Peers) add(one Peer) {
	switch {
	case slices.Contains(p.List, one):
	case len(p.List) == MaxPeers:
		p.More++
	default:
		p.List = append(p.List, one)
	}
}

// Actions for the maker of an offer.
type (
	// Taken says that an offer cannot have its name, or that everything has ended (Closed).
	Taken struct {
		Offer  OfferID
		Closed bool
	}

	// WritersDone answers AwaitWriters. InUse: consumers of the earlier offer By may still write the memory.
	WritersDone struct {
		Offer OfferID
		InUse bool
		By    OfferID
	}

	// Replaced says that other memory has the offer's place.
	Replaced struct{ Offer OfferID }

	// Timer asks for a Tick at that time, in place of an earlier one.
	Timer struct {
		Offer OfferID
		At    time.Time
	}

	// Over says that an offer ends, and how its leases do. Idle: it had no lease for as long as its
	// terms allow.
	Over struct {
		Offer  OfferID
		Reason Reason
		Idle   bool
	}

	// Finished says that an offer's leases have ended, and that nobody writes its memory any
	// more but those of Unsure. The memory may be let go.
	Finished struct {
		Offer  OfferID
		Open   Peers  // may have legacy memory open
		Unsure Peers  // may still write
		Doubt  string // why the first of Unsure may; "" is GiveUp
	}
)

func (a Consult) To() SessionID  { return a.Session }
func (a Wait) To() SessionID     { return a.Session }
func (a Progress) To() SessionID { return a.Session }
func (a Grant) To() SessionID    { return a.Session }
func (a Complete) To() SessionID { return a.Session }
func (a Newer) To() SessionID    { return a.Session }
func (a Confirm) To() SessionID  { return a.Session }
func (a Refuse) To() SessionID   { return a.Session }
func (a End) To() SessionID      { return a.Session }

func (Taken) To() SessionID       { return 0 }
func (WritersDone) To() SessionID { return 0 }
func (Replaced) To() SessionID    { return 0 }
func (Timer) To() SessionID       { return 0 }
func (Over) To() SessionID        { return 0 }
func (Finished) To() SessionID    { return 0 }
