// Package share offers device memory to other processes and attaches to what
// they offer. It joins packages vmm and sock: descriptors of memory travel over
// a Unix socket, and the connection is the lease.
//
//	srv, err := share.Listen(path)                            // 0600, in a directory of yours
//	err = srv.Offer(ctx, "weights", buf, share.ReadOnly)      // serves until ctx is done
//
//	att, err := share.Attach(ctx, path, "weights", dev)       // in another process
//	defer att.Close()
//	use(att.Ptr())
//
// Any number of consumers may be attached at once; each costs the producer a
// connection and a goroutine, and its process a descriptor and a goroutine, and no export. [Server.Offer] waits for the work
// in the memory's device before the first consumer hears of it, so that what a
// consumer sees is finished.
//
// A handoff is fastest where both sides do beforehand what they can: the
// producer calls [Server.Prepare] while the data is in the making, and the
// consumer attaches then: it maps the memory at once and waits for the data, of
// which [Prepared.Offer] tells it.
//
// # Versions
//
// [Server.Replace] puts other memory up under the same name, without an instant in which
// there is none. Consumers keep the version that they have; [Attachment.Superseded] tells
// them that there is another. [Follow] ranges over the versions, waits for a producer that
// is not there, and can map each at the same address. [List] tells what a producer offers.
// [Lease.Notify] and [Attachment.Notify] send the other side a few bytes.
//
// A successor takes memory over from a producer that is to end, without loading it again:
// it attaches [WithReoffer], and offers the buffer of its [Attachment] itself. With
// [Server.HandOver] and [TakeOver] it gets the socket as well, and no consumer is refused.
//
// # Lease
//
// While the connection lives, each side knows of the other: [Attachment.Done]
// ends when the producer is gone or takes the offer back, and [Lease.Done] when the
// consumer is gone, of which an [Event] tells, too. [Lease.Revoke] takes the offer
// back from one consumer. Neither loses the memory by the
// other's death: a mapping outlives everyone else. A consumer may report what
// it found ([Attachment.Report]); a verdict is an error on both sides if it is
// not good.
//
// A side that leaves says farewell; one that does not was killed or has failed, and is
// lost ([LostError]). The end of a lease does not end the work of its holder on the device:
// [Lease.AwaitFence] waits for that, and [WithFence] has an offer do so before it hands its
// memory back. [Attachment.Release] gives memory up when its work is done.
//
// Memory of an earlier run is told from newer memory by its generation, which goes
// up with every buffer that is made on the machine: a consumer that attaches again
// says with [WithNewerThan] which it had. One that still has the memory mapped takes a
// lease of it again with [Attachment.Resume].
//
// # Legacy handles
//
// Memory of cuMemAlloc is offered to programs that take no descriptors as a [Legacy],
// with [Server.OfferLegacy]; [Attach] takes it if [WithHandle] says so, and
// [Attachment.Ptr] and [Attachment.Size] are where it is. It can be written by whoever opens it, and nothing
// keeps it: see [Legacy] for what the leases do about that.
//
// # Order
//
// What streams of two processes do to memory that both use is ordered by a
// [Counter] in a control chunk, a buffer of its own that is offered for reading and
// writing. A wait has a deadline, which frees the stream; then that wait, those behind it in
// the stream, and the counter from then on are [cu.ErrGivenUp]. The host reads the number and
// waits for it with [Counter.Value] and [Counter.Await]. The counter is closed before
// the memory, and not while streams have still to signal or wait there ([ErrInUse]).
//
// # What bites
//
// The descriptor is the capability. Read-only guards against mistakes of
// consumers that attach through this library; a peer that has the descriptor
// can map the memory read-write, and keeps it after a lease is revoked. Who
// must not write gets a copy.
//
// Peers are known by their uid: this user's by default, on both sides; see
// [WithPolicy] and [WithAuthorize]. What a peer can make this side
// hold or do is bounded. docs/security.md says what a hostile peer can do all the
// same, and lists the bounds.
//
// # On the wire
//
// docs/wire.md describes every byte, and internal/wire/testdata/vectors.json holds examples;
// clients in other languages need nothing else.
package share
