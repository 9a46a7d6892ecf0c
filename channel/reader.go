package channel

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/share"
)

// A Reader takes the frames of a channel. The caller owns it and ends it with Close. One goroutine at
// a time takes and releases frames; in a channel [WithAnyOrder] one goroutine at a time takes frames, and any
// goroutine releases them. Any goroutine may call the other methods. The zero Reader is a closed one.
type Reader struct {
	shape
	*cursor
	opts  *readerOptions
	ctx   *cu.Context // a reference of its own
	att   *share.Attachment
	owns  bool // the attachment
	track *tracker

	policy Policy // by which frames are ordered with the writer; opts has the one that was asked for
	first  uint64 // sequence of the frame with number 1

	turn      sync.Mutex   // held by Next and NextOn, and by Release and ReleaseOn but in any order
	using     sync.RWMutex // held for reading by what uses the cursor without turn; Close unmaps it behind them
	releasing sync.Mutex   // in any order: held by ReleaseOn, also while the driver keeps the call

	holding sync.Mutex // guards held, for moments
	held    heldFrames

	// Under turn:
	next     uint64        // number of the frame that is taken next
	seen     uint64        // frames that were given, as far as was looked
	last     uint64        // sequence of the last frame that was taken
	waited   time.Duration // the last time that Next did
	byStream bool          // ReleaseOn was used; in any order under releasing
	passedBy bool          // the frame that was released last was not whole any more: the newest is next
	batch    [1]cu.MemOp   // in any order under releasing
	allFreed bool          // by Close, which has nothing more to do

	released atomic.Uint64 // number of the last frame that was released, or queued to be; in any order how many were, or are about to be
	taken    atomic.Uint64 // number of the last frame that was taken
	awaited  atomic.Uint64 // number of the last frame that a stream was told to wait for

	stats counters

	mu      sync.Mutex  // held while a stream is given a wait, and while the writer's end is noted
	freeing atomic.Bool // this side writes, or has written, what frees its streams
	writer  writerEnd
	done    chan struct{} // the writer has ended, or this side
	leaving leaving
	behind  sync.WaitGroup
}

// writerEnd says how the writer has ended.
type writerEnd struct {
	lost  atomic.Bool // it has; set after the fields below
	whole uint64      // frames that were given by then
	final uint64      // sequence of the last frame that it published, if it says so
	why   error
}

// leaving records the progress of Close.
type leaving struct {
	once   sync.Once // of shut: a second caller goes on when the bell has been rung
	begun  atomic.Bool
	closed chan struct{} // closed together with begun

	mu    sync.Mutex
	freed <-chan struct{} // closed when the streams are free; nil before Close has begun to free them
	over  bool            // no stream has to do with the cursor any more; Close has still to free memory
}

// counters are what a reader counts.
type counters struct{ received, lost, passed, stall atomic.Uint64 }

// Stats are the counters of a reader.
type Stats struct {
	Received uint64        // frames taken
	Lost     uint64        // frames published that this reader was not given, or that were overwritten before it took them; not those that it had not taken when it was dropped or the channel ended
	Passed   uint64        // frames overwritten while this reader held them
	MaxStall time.Duration // the longest that Next waited
}

// isZero reports whether there is no channel: every call says ErrClosed.
func (r *Reader) isZero() bool { return r == nil || r.cursor == nil }

// closed is the Done of a zero Reader or Writer.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// toldOf is what a state of the writer means for this side.
func (r *Reader) toldOf(state uint64) error {
	last := r.load(offLast)
	switch state {
	case writerEnded:
		return fmt.Errorf("%w; its last frame was %d", ErrEnded, last)
	case writerDropped:
		return fmt.Errorf("%w: this reader took too long, or its connection has ended; the last frame was %d", ErrDropped, last)
	case writerRefused:
		if err := r.att.Err(); err != nil { // the writer has said why
			return fmt.Errorf("%w: a reader of policy %s: %w", ErrDropped, r.opts.policy, plain.ErrorOf(err.Error(), ErrPolicy))
		}
		return fmt.Errorf("%w: it does not admit policy %s, has no room for another reader, or found nonsense in the cursor: %w", ErrDropped, r.opts.policy, ErrPolicy)
	case writerOpen:
		return &WriterLostError{Last: r.lastWhole(), Err: r.att.Err()}
	}
	return fmt.Errorf("%w: the writer says that its state is %d, which is none", ErrCursor, state)
}

// lastWhole is the sequence of the last frame that is known to be whole. A reader that drops the
// newest may have missed some before it.
func (r *Reader) lastWhole() uint64 {
	if r.policy == DropNewest && r.writer.whole > 0 {
		return r.load(r.shape.entry(r.writer.whole) + entrySequence)
	}
	return max(r.first, 1) + r.writer.whole - 1
}

// watch waits for the end of the writer, or of this side.
func (r *Reader) watch() {
	defer r.behind.Done()
	select {
	case <-r.att.Done():
	case <-r.leaving.closed:
		close(r.done)
		return
	}
	state := r.load(offWriterState)
	whole := r.load(offPublished)
	if r.streams { // whose wait may be for what never comes
		r.freeing.Store(true)
		whole = r.swap(offPublished, given)
		// NextOn holds mu while the driver has no room for more, until the stream goes on.
		locked := begin(r.mu.Lock)
		keepFreeing(r.words, offPublished, func() bool { return isClosed(locked) }, func() bool { return false })
	} else {
		r.mu.Lock()
	}
	switch r.writer.whole = whole; {
	case whole >= given && r.leaving.begun.Load(): // Close has written that
		r.writer.whole = 0
	case !r.streams && r.isThere(whole+1): // the writer was killed just before it said so
		r.writer.whole++
	}
	r.writer.why, r.writer.final = r.toldOf(state), r.load(offLast)
	if err := cmp.Or(r.dropped(), checkPublished(r.policy, r.writer.whole, 0, r.givenBack(), r.slots)); err != nil {
		r.writer.whole, r.writer.why = 0, err // a writer that drops this side frees its stream, which goes on publishing
	}
	r.writer.lost.Store(true)
	r.mu.Unlock() // no other wait is queued from here on
	r.ring(offReaderBell)
	close(r.done)
	if !r.anyOrder { // where no stream waits
		r.track.free(r.words, offPublished)
	}
}

// givenBack is how many frames were released. A stream may still have to release some more, but not in any order, where
// frames count before their slots' words are stored: the writer may use a slot at once.
func (r *Reader) givenBack() uint64 {
	if r.anyOrder {
		return r.released.Load()
	}
	return r.load(offReleased)
}

// Done is closed when the writer has ended, died or dropped this reader, and by Close. Frames that
// were whole by then can still be taken, except by a reader that was dropped: the writer uses its
// slots again.
func (r *Reader) Done() <-chan struct{} {
	if r.isZero() {
		return closed
	}
	return r.done
}

// Err says why Done is closed: [ErrEnded], a [*WriterLostError], [ErrDropped], [ErrCursor] or [ErrClosed].
func (r *Reader) Err() error {
	if r.isZero() || !r.writer.lost.Load() {
		return r.isOpen()
	}
	return r.writer.why
}

// Slots returns how many frames the channel holds.
func (r *Reader) Slots() int { return int(r.slots) }

// AnyOrder reports whether frames are released in any order ([WithAnyOrder]).
func (r *Reader) AnyOrder() bool { return r.anyOrder }

// SlotSize returns the largest size of a frame in bytes.
func (r *Reader) SlotSize() uint64 { return r.slotSize }

// First returns the sequence of the first frame that this reader may get.
func (r *Reader) First() uint64 { return r.first }

// Attachment returns the lease and the memory of all slots. It belongs to the reader.
func (r *Reader) Attachment() *share.Attachment { return r.att }

// AwaitFence waits until no work that a dead writer left on the device can write the frames any more,
// which takes some 10 ms. Call it to keep a frame after the writer's death
// ([share.Attachment.AwaitFence]).
func (r *Reader) AwaitFence(ctx context.Context) error { return r.att.AwaitFence(ctx, fence.Fenced) }

// Stats returns the counters so far.
func (r *Reader) Stats() Stats {
	c := &r.stats
	return Stats{c.received.Load(), c.lost.Load(), c.passed.Load(), time.Duration(c.stall.Load())}
}

// Close leaves the channel. Once Close was called, all other methods return [ErrClosed].
//
// Close frees a stream that waits for a frame which is not published, at once. For one whose frames are there, and
// that still has to take or release them, it waits up to a second; then it frees that, too, and waits a second
// more. To wait longer, synchronise the stream first. If the stream has other work to do, Close returns [ErrInUse]
// and keeps the memory; call it again when the stream has gone on.
//
// Memory is closed only when no stream has work ([cu.Driver.WaitToClose]). Close waits for the work of other streams
// for a second, and then, or at once while a stream is being captured, returns ErrInUse: the lease and the memory are
// kept, and Close may be called again. The writer does not wait for this reader any more: frames that are held are given
// back, so synchronise what reads them before Close. In a channel [WithAnyOrder] frames that are held are given back once
// no stream has work.
func (r *Reader) Close() error {
	if r.isZero() {
		return nil
	}
	r.shut()
	if !r.takeTurn() {
		return r.track.inUse()
	}
	defer r.turn.Unlock()
	if !lockWithin(&r.releasing, closeLimit) {
		return r.track.inUse()
	}
	defer r.releasing.Unlock()
	if r.allFreed {
		return nil
	}
	if !r.leaving.over {
		if err := r.settle(); err != nil {
			return err
		}
		r.leaving.mu.Lock()
		r.leaving.over = true
		r.leaving.mu.Unlock()
		r.behind.Wait()
	}
	r.using.Lock() // AwaitWanted, which waits, has heard of the end
	defer r.using.Unlock()
	err := r.discard()
	r.allFreed = err == nil
	return err
}

// takeTurn locks turn for Close. If NextOn is in the driver, until its stream goes on, takeTurn frees that.
func (r *Reader) takeTurn() bool {
	if lockWithin(&r.turn, closeLimit/10) {
		return true
	}
	if !r.letGoIfVain() && lockWithin(&r.turn, closeLimit) {
		return true
	}
	r.letGo()
	return lockWithin(&r.turn, closeLimit)
}

// shut makes all other methods return [ErrClosed].
func (r *Reader) shut() {
	r.leaving.once.Do(func() {
		r.leaving.begun.Store(true)
		close(r.leaving.closed)
		r.ring(offReaderBell)
	})
}

// leave begins Close for a stream that is being closed, and waits for a frame.
func (r *Reader) leave() {
	r.shut()
	r.letGo()
}

// settle waits until no stream has to do with the cursor.
func (r *Reader) settle() error {
	limit := 2 * closeLimit // for its work with frames that are there
	if r.anyOrder {         // which is all that it has
		return r.track.await(limit)
	}
	if !r.letGoIfVain() {
		limit = closeLimit
		if r.track.await(limit) == nil {
			return nil
		}
	}
	r.letGo()
	for late := time.After(limit); ; r.letGoAgain() {
		select {
		case <-r.leaving.freed:
		case <-late:
			return r.track.await(0)
		}
		if r.track.await(0) == nil { // else NextOn has queued one more since
			return nil
		}
	}
}

// letGoIfVain begins to free the streams if one waits, or will wait, for a frame that is not published, and reports
// whether the streams are being freed.
func (r *Reader) letGoIfVain() bool {
	l := &r.leaving
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over && l.freed == nil && r.load(offPublished) < r.awaited.Load() {
		r.beginFreeing()
	}
	return l.freed != nil
}

// letGo begins to free the streams for Close.
func (r *Reader) letGo() {
	l := &r.leaving
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over && l.freed == nil && !r.anyOrder {
		r.beginFreeing()
	}
}

// letGoAgain is letGo for what was queued after that began.
func (r *Reader) letGoAgain() {
	l := &r.leaving
	l.mu.Lock()
	defer l.mu.Unlock()
	r.beginFreeing()
}

// beginFreeing runs with leaving.mu held.
func (r *Reader) beginFreeing() {
	l := &r.leaving
	r.behind.Add(1)
	l.freed = begin(func() {
		defer r.behind.Done()
		r.freeing.Store(true)
		r.track.free(r.words, offPublished)
	})
}

// discard ends what a reader has. It may be called again. No stream has to do with the cursor any more: the writer lets
// go of a reader that has left.
func (r *Reader) discard() error {
	if !r.anyOrder || r.held.n == 0 || r.writer.lost.Load() { // else the writer would write what streams still read
		r.leaves()
	}
	return closeBesideOthers(r.ctx, closeLimit, r.free)
}

// leaves tells the writer that this reader has left.
func (r *Reader) leaves() {
	if r.cursor != nil && r.cursor.b != nil {
		r.store(offReaderState, readerLeft)
		r.ring(offWriterBell)
	}
}

// free frees what a reader has, or fails at the first part that is in use.
func (r *Reader) free() error {
	r.leaves()
	if r.owns {
		if err := r.att.Close(); err != nil {
			return err
		}
	}
	if r.cursor != nil {
		if err := r.cursor.close(); err != nil {
			return err
		}
	}
	if err := r.track.close(); err != nil {
		return err
	}
	return r.ctx.Close()
}
