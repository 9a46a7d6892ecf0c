package channel

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
)

// A Frame is what was published in a slot, until it is released.
type Frame struct {
	Sequence uint64       // from 1; frames between two that were taken are lost to this reader
	Index    int          // of the slot
	Time     int64        // nanoseconds of CLOCK_MONOTONIC at which it was published ([Now]), or 0
	Meta     cu.DevicePtr // what the writer says of it, for kernels: EntrySize bytes, for [DecodeEntry]; 0 in a channel [WithAnyOrder], where a later frame may be described there

	ptr    cu.DevicePtr
	size   uint64
	number uint64
	length uint64
	user   [MaxUser]byte
}

// Ptr returns the device address of the frame's first byte; 0 for the zero Frame. So a Frame is an argument of
// launches and copies; a copy that is given a *Frame allocates nothing.
func (f Frame) Ptr() cu.DevicePtr { return f.ptr }

// Size returns how many bytes the frame has. Copies of more are refused ([cu.ErrTooShort]). For a frame whose size is not
// known yet ([Reader.NextOn]) it is that of the slot.
func (f Frame) Size() uint64 { return f.size }

// User returns the application's own bytes that go with the frame. They are a copy in f, and stay good
// when the frame is released.
func (f *Frame) User() []byte { return f.user[:f.length] }

// entry is a copy of what the writer wrote of a frame.
type entry struct {
	stamp, sequence, slot, time, bytes, length uint64
}

func (r *Reader) readEntry(at int) entry {
	return entry{r.load(at + entryStamp), r.load(at + entrySequence), r.load(at + entrySlot), r.load(at + entryTime), r.load(at + entryBytes), r.load(at + entryLength)}
}

// Next waits for the next frame, until ctx or the channel ends, and takes it. The frame's bytes can
// be read at once. A reader may hold several frames, and releases them in the order in which it
// took them, or [WithAnyOrder] in any. The frame's Sequence and [Reader.Stats] show how many were lost
// before it. A reader of [Latest] gets the newest frame, and holds one at most.
//
// Errors: [ErrOrder] if as many frames are held as may be; [ErrEnded], a [*WriterLostError] or [ErrDropped] when there are no more; [ErrCursor] if the
// writer wrote nonsense; [ErrClosed]; what ended ctx.
func (r *Reader) Next(ctx context.Context) (f Frame, err error) {
	if err := cmp.Or(plain.ContextErr(ctx), r.isOpen()); err != nil { // a slow reader always finds a frame, and would never look
		return f, err
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	if err := r.mayHold(); err != nil {
		return f, err
	}
	var waited time.Duration
	for {
		number, err := r.look()
		if err != nil {
			return f, err
		}
		if number == 0 {
			if err := cmp.Or(r.awaitFrame(ctx), plain.ContextErr(ctx)); err != nil {
				return f, err
			}
			waited += r.waited
			continue
		}
		ok, err := r.takeAny(&f, number)
		if err == nil && !ok {
			err = plain.ContextErr(ctx) // a writer that lies could go on like this
		}
		if err != nil {
			return Frame{}, err
		}
		if ok {
			r.noteStall(waited)
			return f, nil
		}
	}
}

// takeAny takes the frame of that number, or as the policy has it. It is not ok if there is none any more: the next look
// finds another.
func (r *Reader) takeAny(f *Frame, number uint64) (ok bool, err error) {
	if r.policy == Latest {
		return r.claim(f)
	}
	if r.opts.policy == Latest {
		r.skipTo(number)
	}
	if ok, err = r.take(f, number); !ok && err == nil {
		r.next = behind(number, r.seen)
	}
	return ok, err
}

// noteStall keeps the longest wait.
func (r *Reader) noteStall(d time.Duration) {
	if uint64(d) > r.stats.stall.Load() {
		r.stats.stall.Store(uint64(d))
	}
}

// isOpen is nil while the reader is. The zero Reader never was.
func (r *Reader) isOpen() error {
	if r.isZero() || r.leaving.begun.Load() {
		return errClosed
	}
	return nil
}

// use locks using for reading, or fails once Close was called, which may hold it for a second.
func (r *Reader) use() error {
	if err := r.isOpen(); err != nil {
		return err
	}
	r.using.RLock()
	if err := r.isOpen(); err != nil {
		r.using.RUnlock()
		return err
	}
	return nil
}

// look is the number of the frame that is to be taken, or 0 if there is none yet.
func (r *Reader) look() (number uint64, err error) {
	if err := r.isOpen(); err != nil {
		return 0, err
	}
	if err := r.dropped(); err != nil {
		return 0, err
	}
	lost := r.writer.lost.Load()
	if !lost && !r.streams && !r.passedBy && r.policy != Latest && r.isThere(r.next) {
		r.seen = max(r.seen, r.next-1) // the stamp of frame next proves that those before it were published
		return r.next, nil
	}
	announced := r.announced(lost)
	published := announced
	if announced == r.seen && !r.streams {
		published = max(announced, r.next-1) // a frame may be whole before the writer counts it
	}
	seen := r.seen
	if lost && !r.streams {
		seen = 0 // this side may have seen frames that the writer gave after its connection was lost
	}
	if err := checkPublished(r.policy, published, seen, r.released.Load(), r.slots); err != nil {
		return 0, cmp.Or(r.dropped(), err)
	}
	r.seen = announced
	if r.passedBy { // what lies between is old
		r.next, r.passedBy = max(r.next, announced), false
	}
	if number = choose(r.opts.policy, r.next, published, r.slots); number == 0 && lost {
		r.countLast()
		return 0, r.writer.why
	}
	return number, nil
}

// announced is how many frames the writer says that it has given, or was known to have given when it
// was lost.
func (r *Reader) announced(lost bool) uint64 {
	published := r.load(offPublished)
	switch {
	case lost:
		return r.writer.whole
	case r.freeing.Load():
		return r.seen // this side will say why in a moment; a dead writer may write until then
	}
	return published
}

// isThere reports whether the entry of a frame is whole: a moment before the writer says that it has
// published it, and in the line of the cache that the reader needs next.
func (r *Reader) isThere(number uint64) bool {
	if r.policy == Latest {
		_, ok := r.find(number)
		return ok
	}
	return r.load(r.shape.entry(number)+entryStamp) == 2*number
}

// dropped says whether the writer has dropped this reader. It says so before it takes slots that
// the reader has or was given: what was read until then is whole, and nothing behind.
func (r *Reader) dropped() error {
	if state := r.load(offWriterState); state == writerDropped || state == writerRefused {
		return r.toldOf(state)
	}
	return nil
}

// countLast counts as lost what the writer published behind the last frame that it gave to this
// reader, which only drops the newest.
func (r *Reader) countLast() {
	if r.policy == DropNewest && r.writer.final > r.last {
		r.stats.lost.Add(r.writer.final - r.last)
		r.last = r.writer.final
	}
}

// awaitFrame waits until there may be one.
func (r *Reader) awaitFrame(ctx context.Context) error {
	_, err := waiting{words: r.words, bell: offReaderBell, polls: offWriterPolls, was: &r.waited}.await(ctx, func() (bool, error) {
		return r.policy != Latest && r.isThere(r.next) || r.load(offPublished) >= r.next && !r.freeing.Load() || r.writer.lost.Load(), r.isOpen()
	})
	return err
}

// take copies into f what the writer says of a frame. It is not ok if the frame is not whole any
// more, which can only be where nobody waits for this reader.
func (r *Reader) take(f *Frame, number uint64) (ok bool, err error) {
	at := r.shape.entry(number)
	e := r.readEntry(at)
	if e.stamp != 2*number {
		return r.takeUnannounced(f, number)
	}
	if e.bytes > r.slotSize || e.length > MaxUser || e.slot >= r.slots || e.sequence <= r.last {
		if r.load(at+entryStamp) != 2*number {
			return false, nil
		}
		return false, fmt.Errorf("%w: the writer published frame %d after frame %d, of %d bytes with %d user bytes, in slot %d of %d", ErrCursor, e.sequence, r.last, e.bytes, e.length, e.slot, r.slots)
	}
	f.Sequence, f.Index, f.size, f.Time, f.length = e.sequence, int(e.slot), e.bytes, int64(e.time), e.length
	for i := 0; i < int(e.length); i += 8 {
		binary.LittleEndian.PutUint64(f.user[i:], r.load(at+entryUser+i))
	}
	if r.load(at+entryStamp) != 2*number {
		return false, nil
	}
	return true, r.keep(f, number)
}

// takeUnannounced takes a frame that the writer's stream has not announced.
func (r *Reader) takeUnannounced(f *Frame, number uint64) (ok bool, err error) {
	switch {
	case r.streams:
		*f = r.predicted(number)
		return true, r.keep(f, number)
	case r.policy == DropOldest:
		return false, nil
	}
	return false, fmt.Errorf("%w: the writer published frame number %d, which is not whole", ErrCursor, number)
}

// predicted is a frame of a channel for streams, whose slots follow each other.
func (r *Reader) predicted(number uint64) Frame {
	sequence := r.first + number - 1
	return Frame{Sequence: sequence, Index: int(r.slotOf(sequence)), size: r.slotSize}
}

// keep notes that the frame was taken.
func (r *Reader) keep(f *Frame, number uint64) error {
	r.holding.Lock()
	defer r.holding.Unlock()
	for i := range r.held.n {
		if h := r.held.at(i); r.policy != DropOldest && h.slot == uint64(f.Index) {
			return fmt.Errorf("%w: the writer published frame %d in slot %d, where this reader holds frame number %d", ErrCursor, f.Sequence, f.Index, h.number)
		}
	}
	f.number = number
	f.ptr = r.att.Ptr().Add(uint64(f.Index) * r.stride)
	if !r.anyOrder {
		f.Meta = r.device(r.entryOf(number, uint64(f.Index)))
	}
	r.held.add(heldFrame{number, uint64(f.Index)})
	r.stats.received.Add(1)
	r.stats.lost.Add(f.Sequence - r.last - 1)
	r.last, r.next = f.Sequence, number+1
	r.taken.Store(number)
	return nil
}
