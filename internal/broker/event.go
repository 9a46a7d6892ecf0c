package broker

import (
	"time"

	"github.com/gpufd/gpufd/internal/wire"
)

// Numbers that the caller gives out, from 1. No number is used twice.
type (
	OfferID   uint64
	SessionID uint64
	ProcessID uint64
	MemoryID  uint64
)

// A Peer is who made a connection.
type Peer struct {
	UID, GID uint32
	PID      int32
}

// A Fence says which word or fact about a consumer an offer waits for in the end.
type Fence int

const (
	NoFence  Fence = iota
	Released       // the consumer has said that it does not use the memory any more, or its process has died
	Fenced         // its process has died
)

// Terms say how an offer ends and what it waits for.
type Terms struct {
	Record wire.Offer // what consumers are told: name, memory, access and what they must take
	Memory MemoryID   // the same for offers of the same memory, which may have grown
	Fence  Fence

	Leases      int           // consumers that it admits in all; 0 is no bound
	Idle, Grace time.Duration // without a lease; after it was replaced; 0 is no bound
	Replaces    bool          // takes its name from the offer that has it
	Resumes     bool          // is for consumers that have mapped its memory, and does not have its name; ends only by Retire or Withdraw
}

// An Event is something that happened. Step applies it.
type Event interface{ apply(b *Broker) }

// Events of names and offers.
type (
	// Work says how far the offer of a name is: sessions that wait for it are told.
	Work struct {
		Name        string
		Done, Total uint64
	}

	// Claim begins an offer. Taken answers it if the name is another's: then there is no offer.
	Claim struct {
		Offer OfferID
		Terms Terms
	}

	// Describe completes the terms of an offer that is claimed.
	Describe struct {
		Offer  OfferID
		Record wire.Offer
		Memory MemoryID
	}

	// AwaitWriters asks whether an offer's memory may still be written on account of an earlier
	// one that has not finished. WritersDone answers it: with Wait only when it cannot any more.
	AwaitWriters struct {
		Offer OfferID
		Wait  bool
	}

	// Prepare hands out the descriptors of an offer whose data is not there yet. Taken
	// answers it, or Publish, if the name is another's by now; then Withdraw the offer.
	Prepare struct{ Offer OfferID }

	// Publish says that an offer's data is there. InOrder: where a later offer has the name already,
	// this one is superseded at once.
	Publish struct {
		Offer   OfferID
		InOrder bool
	}

	// Supersede takes an offer's name away, because memory of that generation, of another
	// name, has its place. Its leases go on.
	Supersede struct {
		Offer OfferID
		By    uint64
	}

	// Retire ends an offer without a name after its last lease.
	Retire struct{ Offer OfferID }

	// Withdraw ends an offer, in whatever state it is.
	Withdraw struct {
		Offer      OfferID
		Restarting bool // there is or will be a successor
	}

	// GiveUp ends the wait for an offer's fences.
	GiveUp struct{ Offer OfferID }

	// Tick says that the time of a Timer has come.
	Tick struct{ Offer OfferID }

	// Close ends everything.
	Close struct{ Restarting bool } // there is or will be a successor
)

// Events of sessions and processes.
type (
	// Ask says what a new session wants.
	Ask struct {
		Session SessionID
		Peer    Peer
		Process ProcessID // 0 if its end cannot be known
		Doubt   string    // why it cannot
		Want    wire.Attach
	}

	// Answer is what the application decided after Consult. Denied: it does not admit the session to the
	// offer. Hidden: the session must not learn that there is one.
	Answer struct {
		Session        SessionID
		Offer          OfferID
		Denied, Hidden bool
	}

	// Map says that a session has mapped the memory of that generation. Out of turn, it ends
	// the session as Failed.
	Map struct {
		Session    SessionID
		Generation uint64
	}

	// Detach says that a session has unmapped the memory, and keeps its lease. Out of turn, it ends the
	// session as Failed: without MAPPED, and of memory that is writable or not by descriptors alone.
	Detach struct{ Session SessionID }

	// Revoke ends one lease.
	Revoke struct{ Session SessionID }

	// Leave says why a session ends on its own side: its connection is over, it said something
	// out of turn, or could not be sent what it was to get. End answers it.
	Leave struct {
		Session SessionID
		Reason  Reason
	}

	// Gone says that the connection of a session is over, after End.
	Gone struct {
		Session  SessionID
		Sent     bool // it was sent a descriptor, at least
		Released bool // it has said that it does not use the memory any more, or never had it
		Open     bool // it may have legacy memory open
	}

	// Die says that a process has died.
	Die struct{ Process ProcessID }

	// Lose says that the end of a process cannot be known any more, and why.
	Lose struct {
		Process ProcessID
		Doubt   string
	}
)
