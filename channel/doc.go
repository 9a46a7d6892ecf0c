// Package channel passes frames from one process to others through GPU memory, in order, in
// microseconds: once both sides have mapped the memory, a frame is a number.
//
//	w, err := channel.NewWriter(ctx, c, srv, "camera", 8, 4<<20) // c is a cu.Context, srv a share.Server
//	slot, err := w.Acquire(ctx)                                 // room for the next frame
//	fill(slot.Ptr())                                            // and wait until that is done
//	err = w.Publish(slot, channel.Meta{})
//
//	r, err := channel.Open(ctx, path, "camera", c)              // in another process
//	f, err := r.Next(ctx)
//	use(f.Ptr())                                                // and wait until that is done
//	err = r.Release(f)
//
// One writer has up to 64 readers. The frames are in slots of one buffer, which the writer
// offers through package share, read-only. Each reader and the writer have a cursor in common:
// host memory that both map and register with CUDA, and that nobody else has. Its words say
// which frames the reader was given, and which it has given back. docs/wire.md has every byte.
//
// # Policies
//
// Each reader chooses what happens when it is slower than the writer. [Block] makes the writer wait,
// for as long as [WithStallLimit] allows; [DropOldest], [DropNewest] and [Latest] keep nobody waiting. Frames have
// sequence numbers without gaps, so a reader knows exactly how many it lost. It gets each frame at
// most once, and in order. A reader of [DropOldest] may be passed by while it reads: then Release
// and [Reader.Whole] return [ErrPassed]. A reader of [Latest] gets the newest frame, and keeps it: the writer
// takes another slot.
//
// A reader that holds frames while it waits for the next needs as many slots more. With two slots, a
// reader that blocks and holds both waits for the writer, which waits for it.
//
// In a channel [WithAnyOrder] a reader keeps frames while it takes and releases later ones, and any goroutine may
// release them, also while another one waits in Next. Its readers block, and so do those of a channel of one slot,
// which the writer writes while nobody has the frame. [Reader.AwaitWanted] returns when the writer waits for this
// reader: until then a frame may be kept. [Reader.Note] tells the writer a number of the application's own.
//
// # Hosts and streams
//
// Acquire, Publish, Next and Release are the host's. A wait looks at the word for 50 µs, or for
// 200 µs if the wait before was shorter than that. Then it sleeps, and the other side's host wakes it
// (futex(2) on a word of the cursor). A stream wakes nobody: a host that waits for one looks again
// after 20 µs, and then less and less often, but at least every 250 µs.
//
// In a channel made [WithStreams], [Writer.AcquireOn], [Writer.PublishOn], [Reader.NextOn] and
// [Reader.ReleaseOn] queue waits and writes of the same words on a stream and return at once:
// the host queues frames ahead and never waits, makes no system call and allocates nothing.
// Readers block there, those of [Latest] as well; [DropOldest] and [DropNewest] are refused by name ([ErrPolicy]). The operations for all
// readers go to the driver in one call.
//
// Load all modules and launch each kernel once before a stream waits: libcuda loads a kernel at its
// first launch, and that hangs while a stream of the context waits for a frame or a slot. Copy to pinned
// memory: a copy to other memory of the host returns when the stream has got there. In a channel WithAnyOrder frames are
// acquired and taken by the host alone, so no stream waits; streams publish and release.
//
// # Deaths
//
// When a reader dies or its connection ends, the writer counts it out and uses its slots again. If
// the reader lives, it gets [ErrDropped] and no more frames, and the frames that it holds may not be
// whole. A writer that dies within a frame leaves that frame unpublished. Its readers can still take
// the frames that were whole; then they get a [*WriterLostError] that names the last one. [Reader.Check]
// says whether a frame of NextOn was there when the stream went on. [Reader.AwaitFence] waits until
// nothing of a dead writer can write any more. [Follow] goes on with the next writer.
//
// Each side frees its own streams when the other is gone, before it lets go of the cursor: a
// stream that waits for a word that nobody writes would hang the driver.
//
// # What a peer can do
//
// A cursor is shared with one peer. Each side copies what the peer wrote there, and then checks it. A
// number that goes backwards or too far, or a slot that is not free or does not exist, is
// [ErrCursor]: a writer drops that reader, and a reader ends. The writer looks at the readers'
// cursors when it knows of no free slot, and at least once in a round of the slots. A reader that
// writes plausible nonsense, such as a release of a frame that it still reads, harms itself alone. The
// frames are mapped read-only, which guards against mistakes but not against a hostile reader (see
// package share).
package channel
