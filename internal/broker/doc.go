// Package broker decides which memory stands for a name, who has a lease of it, who waits, and
// whose process may still write it. It is a state machine: [Broker.Step] takes one event and
// returns the actions that follow. It has no goroutine, lock, clock or descriptor; offers,
// sessions, processes and memory are numbers that the caller gives out. internal/serve is its
// loop.
//
// # The life of an offer
//
//	Claim          its name is expected: sessions that ask for it wait. Several offers may
//	               claim a name; the first that is prepared or published has it
//	Describe       its record is known, and its memory
//	Prepare        sessions are sent the descriptors, and wait for the data; many offers leave this out
//	AwaitWriters   nobody writes the memory any more on account of an earlier offer → WritersDone
//	Publish        from this step on the name stands for this memory, and all who waited get it.
//	               An offer that had the name is replaced; its leases go on
//	Withdraw       the name is free, and leases end → Over. The last place, idleness and grace
//	               end an offer as Withdraw does
//	               the last lease has ended, and no writer is waited for any more → Finished
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
//	mapped     has mapped the memory (Map)
//	detached   has unmapped it, and keeps its lease (Detach). Another session of its process may reattach:
//	           it gets the same memory, also where that is replaced, and shares the place of this one;
//	           one that takes newer memory, too, gets that instead
//	over       End was returned; with a lease, Gone is to follow when its connection is over
//
// A session that gets no lease is refused (Refuse) and is gone with that.
//
// # Order
//
// The actions of one session are performed in the order in which they were returned; those of
// different sessions in any order. End does not wait for its turn: it interrupts what is being
// sent.
package broker
