package channel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// A Writer publishes frames to its readers. The caller owns it and ends it with Close. One goroutine
// at a time acquires and publishes; any goroutine may call the other methods. The zero Writer is a
// closed one.
type Writer struct {
	shape
	opts  *writerOptions
	ctx   *cu.Context // a reference of its own
	buf   *vmm.Buffer
	track *tracker // of the stream that acquires and publishes

	turn sync.Mutex // held by Acquire, Publish and their sisters

	// Under turn:
	acquired  bool          // a slot is, and not published
	waited    time.Duration // the last time that Acquire did
	slot      uint64
	sequence  uint64 // of the frame that was acquired last
	batch     []cu.MemOp
	pinned    []*member // whose cursors a stream is being given, or Acquire looks at
	written   uint64    // sequence of the last frame that streams had published when pick looked
	before    uint64    // sequence of the frame that the acquired slot had, which the stream that acquired it may have still to write
	slotWords []slotWord
	asked     []*member // that a slot is wanted of
	blockers  []*queue  // room for pick
	ownBell   words     // where Acquire sleeps while only a stream has slots; nobody rings. Pinned memory may be no memory for futex(2)

	giving   sync.Mutex // held while a frame is given to all, and while a reader is admitted
	mu       sync.Mutex
	readers  []*member // that are admitted, in no order
	frames   []uint64  // sequence of the frame in each slot, or 0
	last     uint64    // sequence of the last frame that was published
	lastMeta Meta
	lastUser [MaxUser]byte
	closed   bool
	why      error         // why done is closed
	given    uint64        // frames that readers were given, in all
	skipped  uint64        // frames that readers which drop the newest were not given, in all
	stall    time.Duration // the longest that Acquire waited
	unclosed []*member     // whose cursors their hosts could not close before Close began
	hostsErr error         // of hosts that could not close a cursor, after they had told that its reader is gone

	readersGone bool            // under turn: Close has ended all readers, and has still to free memory
	hostsGone   <-chan struct{} // under turn: closed when guests is empty; nil before Close waits for that
	allFreed    bool            // under turn: by Close, which has nothing more to do

	joined  chan struct{} // one token: somebody has joined or gone
	done    chan struct{} // the channel is not offered any more
	offer   *share.Offer
	served  chan struct{}
	closing atomic.Bool    // as closed, for waits without mu
	begun   chan struct{}  // closed when Close begins
	guests  sync.WaitGroup // hosts of members
}

// Gone describes a reader that has left, died or was dropped.
type Gone struct {
	Lease    int    // number of the reader's lease ([share.Lease.Number])
	Released uint64 // sequence of the last frame that the reader released, or of the newest [WithAnyOrder]; 0 if it released none
	Noted    uint64 // what it noted last ([Reader.Note]), or 0
	Err      error  // nil if it left in order; else ErrStalled, ErrCursor, or how the lease ended
}

// NewWriter makes a channel in memory of the device of c, with that many slots of slotSize bytes
// each. It offers the channel under the name until Close; ctx bounds the making alone. c may be closed
// before the writer.
// Each reader costs cursors of 4 KiB and 256 bytes a slot, a goroutine, and a lease ([share.Server]).
//
// Errors: what ended ctx; those of [vmm.New] and [share.Server.Offer]; one if slots or slotSize is out of range.
func NewWriter(ctx context.Context, c *cu.Context, srv *share.Server, name string, slots int, slotSize uint64, opts ...WriterOption) (*Writer, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
	o, err := newWriterOptions(opts)
	if err != nil {
		return nil, err
	}
	s, err := newShape(slots, slotSize, o.flags)
	if err != nil {
		return nil, err
	}
	if c == nil || srv == nil {
		return nil, errors.New("channel: a writer needs a context and a server (nil)")
	}
	w := &Writer{shape: s, opts: o, frames: make([]uint64, s.slots), joined: make(chan struct{}, 1), done: make(chan struct{}), begun: make(chan struct{}), served: make(chan struct{}),
		batch: make([]cu.MemOp, 0, maxBatch), pinned: make([]*member, 0, MaxReaders), slotWords: make([]slotWord, 0, MaxReaders), asked: make([]*member, 0, MaxReaders), ownBell: words{make([]byte, 8)}, blockers: make([]*queue, 0, MaxReaders)}
	if err := w.open(c); err != nil {
		return nil, err
	}
	if err := plain.ContextErr(ctx); err != nil { // the driver was slow
		return nil, errors.Join(err, closeUnbegun(w.Close))
	}
	offer := o.offer
	offer.Synchronized, offer.CursorSize, offer.OnCursors, offer.Slots = true, s.cursorSize(), w.welcome, slots
	w.offer, err = srv.Offer(name, w.buf, &offer)
	if err != nil {
		return nil, errors.Join(err, closeUnbegun(w.Close))
	}
	go func() {
		defer close(w.served)
		<-w.offer.Done()
		w.noteEnd(w.offer.Err())
	}()
	return w, nil
}

// noteEnd notes that the channel is not offered any more, and why: nobody can join it, and nobody is
// in it. That is no news to Close.
func (w *Writer) noteEnd(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range slices.Clone(w.readers) {
		w.drop(m, writerDropped, m.lease.Err()) // as its host will in a moment
	}
	switch {
	case err != nil:
		w.end(fmt.Errorf("%w: %w", ErrNoOffer, err))
	default:
		w.end(fmt.Errorf("%w: its server was closed, another offer has its name, or an option ended this one", ErrNoOffer))
	}
	w.moved()
}

// end closes done, unless it is closed. It runs with mu held.
func (w *Writer) end(why error) {
	if w.why == nil {
		w.why = why
		close(w.done)
	}
}

// isZero reports whether there is no channel: every call says ErrClosed.
func (w *Writer) isZero() bool { return w == nil || w.done == nil }

// Done returns a channel that is closed when this one is not offered any more, because its server was
// closed or another offer has its name, and by Close. Acquire, Publish and their sisters then return
// the error of [Writer.Err], and no reader is left.
func (w *Writer) Done() <-chan struct{} {
	if w.isZero() {
		return closed
	}
	return w.done
}

// Err returns nil before Done is closed, and then why: [ErrNoOffer] with the reason, or [ErrClosed].
func (w *Writer) Err() error {
	if w.isZero() {
		return errClosed
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why
}

// over says why no frame can be given any more, or nil. It runs with mu held.
func (w *Writer) over() error {
	if w.closed {
		return errClosed
	}
	return w.why
}

// open makes what a writer has on the device.
func (w *Writer) open(c *cu.Context) (err error) {
	if w.ctx, err = c.Retain(); err != nil {
		return err
	}
	if w.track, err = newTracker(w.ctx, func() { w.dropBlockers() }); err == nil {
		w.buf, err = vmm.New(w.ctx.Device(), w.size())
	}
	if err != nil {
		return errors.Join(err, w.track.close(), w.ctx.Close())
	}
	w.generation = w.buf.Describe().Generation
	return nil
}

// Slots returns how many frames the channel holds.
func (w *Writer) Slots() int { return int(w.slots) }

// SlotSize returns the largest size of a frame in bytes.
func (w *Writer) SlotSize() uint64 { return w.slotSize }

// Last returns the sequence of the last frame that was published or queued, or 0.
func (w *Writer) Last() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// Readers returns how many readers have joined and not left.
func (w *Writer) Readers() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.readers)
}

// WriterStats are the counters of a writer.
type WriterStats struct {
	Frames   uint64        // published or queued
	Given    uint64        // frames given, summed over all readers
	Skipped  uint64        // frames withheld from readers that drop the newest, summed over all of them
	MaxStall time.Duration // the longest that Acquire waited
}

// Stats returns the counters so far.
func (w *Writer) Stats() WriterStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return WriterStats{w.last, w.given, w.skipped, w.stall}
}

// AwaitReaders waits until n readers have joined. Errors: [ErrClosed]; [ErrNoOffer]; what ended ctx.
func (w *Writer) AwaitReaders(ctx context.Context, n int) error {
	if w.isZero() {
		return errClosed
	}
	if err := plain.ContextErr(ctx); err != nil {
		return err
	}
	for {
		w.mu.Lock()
		err, there := w.over(), len(w.readers)
		w.mu.Unlock()
		switch {
		case err != nil:
			return err
		case there >= n:
			return nil
		}
		select {
		case <-w.joined:
		case <-time.After(sleepMax): // another one may have had the token
		case <-ctx.Done():
			return fmt.Errorf("channel: %d of %s joined: %w", there, plain.Count(n, "reader"), context.Cause(ctx))
		}
	}
}

// moved wakes AwaitReaders.
func (w *Writer) moved() {
	select {
	case w.joined <- struct{}{}:
	default:
	}
}

// welcome begins a reader: it is called before anything is sent.
func (w *Writer) welcome(l *share.Lease, f *os.File) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errClosed
	}
	c, err := openCursor(w.ctx, f, w.cursorSize())
	if err != nil {
		return err
	}
	w.shape.write(c.words)
	m := &member{cursor: c, lease: l, at: w.shape, left: make(chan struct{})}
	w.guests.Add(1)
	go w.host(m)
	return nil
}
