// Package state is what a keeper keeps and decides: names, their versions, the rights of
// processes, and the owners of the fd store's descriptors. It does no IO, has no
// clock and starts no goroutine: callers pass the time and the process that asks. The same
// calls give the same state, byte for byte.
//
//	next := current.Clone()
//	version, err := next.Deliver(ticket, part, now)   // or another change
//	store.Swap(next.Encode())                         // only then is next the state
//	store.Drop(next.Dropped())
//
// # Versions
//
// A writer books its part of a version ([State.Book]), puts the descriptors into the fd
// store under fresh ids ([State.NewID]), and delivers ([State.Deliver]). A version has
// one part or several; several are booked under one transaction, by one process or by
// many, and the delivery of the last publishes them all. So a name never shows parts of
// two versions. Versions of a name are 1, 2, 3… in the order of their commits.
//
// The version before is retired. It stays until its holders have gone ([State.Hold],
// [State.Release], [State.Lose]) or the policy's grace is over, and [State.Retire] drops
// it. [State.Remove] retires the current version without another.
//
// The numbers of a name's versions are not used again while its record lives. The record
// of a name that was removed lives for 24 hours after nothing of it was left, and the
// keeper has 4,096 such records at most: then the oldest goes first. A name that comes
// again later begins with version 1.
//
// # Processes that end
//
// The end of a connection says that a reader is gone, not that its GPU is done. A reader
// that ended without a goodbye is lost ([State.Lose]), and stays a holder until
// [State.Fence] records that its process has ended. A part is writable by the process that
// wrote it until that is fenced, too.
//
// # Descriptors
//
// The state names an id as long as a part, a booking or a holder has it. A call that
// fails takes over none: the caller drops what it had put into the store. [State.Dropped]
// returns the ids that the state names no longer, each once. A pidfd may be named by
// several bookings and holders, and is dropped with the last; other ids have one owner.
//
// After a restart the keeper drops from the store what [State.Named] does not have,
// before it asks for a new id: ids that are in no manifest are given out again.
//
// # Parking
//
// The pool is chunks of memory of the host ([State.AddChunk]). The parts of the current version, if no process may
// have it mapped, can be in chunks instead of on their devices ([State.Park]), and later on these again
// ([State.Unpark]): name, version, digest and description stay the same. Which bytes are where in between is the
// caller's business: the state knows the old place until it is told the new one. Chunks that no part has are free,
// so a parked version that is dropped gives its own back.
//
// # Time
//
// Calls without a time argument do not record when something happened: the next
// [State.Expire] or [State.Retire] records it, and reports that the state has changed.
//
// # Rights and quotas
//
// See [Policy]. Quotas count what writers declare, of all versions that are kept, the
// retired ones included, and of what is booked.
//
// # Concurrent use
//
// A State is not safe for concurrent use. A state and its clones share values that nobody
// changes, so one goroutine may read a state while another changes a clone of it. Versions
// and parts that methods return by pointer, and labels of bookings, are shared as well,
// and are not to be changed.
//
// The methods of a nil or zero State are those of an empty one that belongs to root; a
// nil one takes no change.
package state
