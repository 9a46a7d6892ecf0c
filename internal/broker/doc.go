// Package broker decides which memory stands for a name, who has a lease of it, who waits, and
// whose process may still write it. It is a state machine: [Broker.Step] takes one event and
// returns the actions that follow. It has no goroutine, lock, clock or descriptor; offers,
// sessions, processes and memory are numbers that the caller gives out. Package serve is its
// loop.
//
// # The life of an offer
//
//	Claim      the name is taken; sessions that ask for it wait
//	Prepare    sessions get the descriptors, and wait for the data (only where the offer is prepared)
//	Begin      waits until nobody writes the memory on account of an earlier offer → Begun
//	Publish    from this step on the name stands for this memory; whoever waited gets it
//	           an offer that had the name before is replaced: its leases go on
//	Withdraw   the name is free, leases end; so do a limit of leases, idleness and grace → Over
//	           the last lease has ended and the last writer is fenced → Finished
//
// An offer that fails before Publish is withdrawn, too: its name is given up, and sessions that
// waited for it are refused, unless another offer of that name is being made.
//
// # The life of a session
//
//	asking     the application is asked about an offer (Ask), and answers (Answer)
//	queued     waits for the offer of a name
//	behind     knows the memory of an offer, and waits for newer
//	granted    has a lease (Grant); its descriptors are sent, before the data is there or with it
//	served     was told that the data is there
//	mapped     has mapped the memory (Mapped)
//	ended      End was returned; Gone follows when its connection is over
//
// A session that gets no lease is refused (Refuse) and is gone with that.
//
// # Order
//
// The actions of one session are performed in the order in which they were returned; those of
// different sessions in any order. End does not wait for its turn: it interrupts what is being
// sent.
package broker
