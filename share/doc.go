// Package share offers device memory to other processes and attaches to what
// they offer. It joins packages vmm and sock: descriptors of memory travel over
// a Unix socket, and the connection is the lease.
//
//	srv, err := share.Listen(path, nil)                      // 0600, in a directory of yours
//	offer, err := srv.Offer("weights", buf, nil)             // read-only, until it is closed
//
//	att, err := share.Attach(ctx, path, "weights", dev, nil)  // in another process
//	defer att.Close()
//	use(att.Ptr())
//
// Any number of consumers may be attached at once. Each connection costs the producer a
// descriptor and a goroutine, and each consumer process one of both; the memory is
// exported only once. [Server.Offer] waits for the work on the memory's device before it
// serves the first consumer, so consumers see finished data.
//
// For the fastest handoff, both sides work beforehand. The producer makes a pending offer
// ([OfferOptions].Pending) while it still makes the data. A consumer that attaches maps the memory
// at once and waits for the data, until [Offer.Publish] says that it is there.
//
// # Versions
//
// [Offer.Supersede] offers other memory under the same name; at every instant the name
// stands for one of the two. Consumers keep the version that they have, and
// [Attachment.Superseded] tells them that there is another. [Follow] ranges over the
// versions, waits for a producer that is not there, and can map each version at the same
// address. If a successor offers the same memory, Follow only takes a new lease. [List]
// asks a producer what it offers. [Lease.Notify] and [Attachment.Notify] send the other
// side a few bytes.
//
// A successor can take memory over from a producer that is about to end, without loading
// it again: it attaches with Reoffer ([AttachOptions]) and offers the buffer of its [Attachment]. With
// [Server.HandOver] and [TakeOver] it gets the socket as well, and no consumer is refused.
//
// # Lease
//
// The connection is the lease, so each side learns when the other has gone.
// [Attachment.Done] is closed when the producer has gone or takes the offer back;
// [Lease.Done] is closed when the consumer has gone, and an [Event] tells. [Lease.Revoke]
// takes the offer back from one consumer. A mapping outlives the other process, so
// neither side loses the memory when the other dies. A consumer may report what it found
// ([Attachment.Report]); a bad verdict is an error on both sides.
//
// A side that leaves in order says farewell. A side that does not was killed or has failed:
// it is lost ([sock.LostError]). The end of a lease does not end its holder's work on the
// device. [Lease.AwaitFence] waits for that work, and [OfferOptions].Fence makes an offer do so
// before it hands its memory back. [Attachment.Close] waits for this side's work, and
// then gives the memory up.
//
// Every buffer that is made on a machine has a larger generation than those before it. A
// consumer that attaches again says with [AttachOptions].NewerThan which generation it had, and so
// never takes memory of an earlier run for new. A consumer that still has the memory mapped
// takes a new lease of it with [Attachment.Resume].
//
// A consumer that has nothing to do for a while gives the device's memory back with [Attachment.Detach], and keeps the
// address and the lease; [Attachment.Reattach] maps the same memory, or newer, there again.
//
// # Legacy handles
//
// A [Legacy] is memory of cuMemAlloc that is offered to programs that cannot take
// descriptors. [Attach] takes it if [AttachOptions].Legacy allows it;
// [Attachment.Ptr] and [Attachment.Size] say where it is. Every consumer can write it, and
// it is gone when its owner frees it: [Legacy] says how leases help.
//
// # Order
//
// Package counter orders the work of streams of two processes on memory that both use.
//
// # What bites
//
// The descriptor is the capability. Read-only access guards against mistakes of
// consumers that attach through this library. A peer that has the descriptor can map the
// memory read-write, and keeps it after its lease was revoked. Give a copy to a peer that
// must not write.
//
// Peers are known by their uid. By default both sides admit only this process's user;
// see [ListenOptions].Policy and [ListenOptions].Authorize. This package bounds what a peer can make this
// side hold or do. docs/security.md lists the bounds, and says what a hostile peer can
// do all the same.
//
// # On the wire
//
// docs/wire.md describes every byte, and internal/wire/testdata/vectors.json holds examples;
// clients in other languages need nothing else.
package share
