// Package vmm owns device memory that can be shared between processes: CUDA's
// virtual memory management, with the state that the driver does not keep.
//
//	buf, err := vmm.New(dev, 64<<20) // physical memory, mapped, read-write here
//	defer buf.Close()
//	use(buf.Ptr())
//
// An [Allocation] is physical memory on a device, or of the host ([CreateHost]), which
// the host and devices use at one address. A [Reservation] is address
// space. A [Mapping] ties them and holds both. A [Buffer] is what programs use:
// reserve, create, map and set access in one, unwound completely if a step
// fails. A [View] maps a buffer's memory once more, with other rights.
//
// The driver maps whole allocations only, so a Buffer may be made of equal
// chunks: growth appends chunks without moving the address, and a part of a
// buffer is shared chunk by chunk. The default is one chunk.
//
// [Buffer.Load] reads files into a buffer with several goroutines, by way of pinned
// memory, and [Buffer.Store] writes a buffer to files. Each takes a list of [FileRange].
//
// # Ownership
//
// New, Create, Reserve, Map and Import return what the caller owns and ends
// with Close, which is idempotent and may be called on nil. [Import] leaves the
// files it is given to the caller. [Buffer.Export] hands out duplicates of
// descriptors made once; [Buffer.Lend] lends those themselves, and the buffer cannot
// be closed until the [Loan] has ended, nor before a [Hold] of it. Imported memory has
// descriptors to give on if it was imported [WithReexport]. Physical memory is free when
// the last handle, mapping and descriptor of it, in any process, is gone: a plain fd is enough
// to keep it.
//
// After Close an address ([Buffer.Ptr] and the others) is 0, and what would need the
// memory gives [cu.ErrClosed]. So do nil and the zero values of all types; a nil
// argument is [ErrNil].
//
// # What bites
//
// Close waits for kernels, copies and other work that this [cu.Driver] has queued, and
// returns [ErrInUse] if that takes too long ([cu.WithCloseLimit]). It knows nothing of work that
// was queued otherwise: synchronise first, or keep a [Hold]. [Buffer.Unmap] waits as
// Close does; CloseNow waits for nothing. Work that gets to memory which is gone loses every context of the process
// ([cu.ErrContextLost]); of the software driver, soft.LastFault names the memory. A
// mapping that is lost without Close is reported with the stack that made it and stays
// mapped, because a kernel may still use it.
//
// Read-only is a property of a mapping, not of the descriptor: it guards
// against mistakes, and a process that holds the fd can map it read-write.
package vmm
