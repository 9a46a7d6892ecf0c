package channel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/vmm"
)

// The cursors of one reader: host memory that it and the writer map, and nobody else.
// docs/wire.md describes it byte by byte. Words of different writers, and words that are
// waited for, have lines of the cache of their own.
const (
	// The head, which the writer fills before the reader gets the memory.
	offMagic      = 0x000 // 8 bytes
	offVersion    = 0x008
	offSlots      = 0x010
	offSlotSize   = 0x018 // bytes of a frame
	offStride     = 0x020 // bytes from one slot to the next
	offFlags      = 0x028
	offGeneration = 0x030 // of the buffer

	offPublished = 0x080 // the writer's: number of the last frame that the reader was given
	offNewest    = 0x088 // the writer's: with Latest, the slot of that frame, or of a later one

	// The writer's, for hosts.
	offWriterState = 0x100
	offLast        = 0x108 // sequence of the last whole frame, once the writer has ended
	offWriterPolls = 0x110 // 1: it publishes by streams, which wake nobody
	offStart       = 0x118 // sequence of the frame with number 1, once the reader is admitted
	offWanted      = 0x120 // number of the reader's next frame, while the host waits for this reader; else 0

	offReleased = 0x180 // the reader's: number of the last frame that it gave back

	// The reader's, for hosts.
	offReaderState = 0x200
	offPolicy      = 0x208
	offJoin        = 0x210
	offReaderPolls = 0x218 // 1: it releases by streams, which wake nobody
	offClaim       = 0x220 // with Latest: 1 + the slot of the frame that it takes or holds; 0 is none
	offNoted       = 0x228 // a number of the application's own

	offReaderBell = 0x280 // futex: 1 while the reader sleeps
	offWriterBell = 0x300 // futex: 1 while the writer sleeps

	offReturned = 0x400 // the reader's, in any order: for each slot the number of the last frame there that it gave back

	offEntries = 0x1000 // one of EntrySize for each slot
)

// An entry is what the writer says of a frame. Frame number n is at (n - 1) mod slots; with Latest it is at its slot.
const (
	entryStamp    = 0x00 // 2n: the frame is whole; odd: it is not, or not any more
	entrySequence = 0x08
	entrySlot     = 0x10
	entryTime     = 0x18
	entryBytes    = 0x20 // of the frame
	entryLength   = 0x28 // of the user's own
	entryUser     = 0x30
)

const (
	magic         = "GPFDCHN1"
	layoutVersion = 1
	pageSize      = 4096
	slotAlign     = 256 // frames begin at multiples of it

	flagStreams  = 1 // every reader blocks; slots follow each other
	flagAnyOrder = 2 // every reader blocks, and gives slots back in any order
)

// Bounds of a channel.
const (
	MinSlots   = 1
	MaxSlots   = 4096
	MaxReaders = 64
	// MaxUser is how many bytes of the application's own go with a frame.
	MaxUser = EntrySize - entryUser

	mostAnyOrder = (offEntries - offReturned) / 8 // slots that have a word each
)

// given is what a side writes into a word that its own streams wait for, to free them
// (E11): more than any number.
const given uint64 = 1<<63 - 1

// States of the writer.
const (
	writerOpen    uint64 = iota
	writerEnded          // in order
	writerDropped        // it has dropped this reader for taking too long
	writerRefused        // it has dropped this reader for what it wrote
)

// States of the reader.
const (
	readerNone uint64 = iota
	readerJoined
	readerLeft
)

// shape is what both sides know of a channel.
type shape struct {
	slots      uint64
	slotSize   uint64
	stride     uint64
	streams    bool
	anyOrder   bool
	generation uint64
}

// newShape checks the numbers of a new channel.
func newShape(slots int, slotSize, flags uint64) (shape, error) {
	stride, ok := vmm.AlignUp(slotSize, slotAlign)
	switch {
	case slots < MinSlots || slots > MaxSlots:
		return shape{}, fmt.Errorf("channel: %d slots; want %d to %d", slots, MinSlots, MaxSlots)
	case flags == flagStreams|flagAnyOrder:
		return shape{}, errors.New("channel: WithStreams and WithAnyOrder: streams wait for frames in order, and slots cannot come back in any order then; choose one")
	case flags == flagAnyOrder && slots > mostAnyOrder:
		return shape{}, fmt.Errorf("channel: %d slots in any order; want %d at most", slots, mostAnyOrder)
	case slotSize == 0 || !ok || stride > (1<<62)/uint64(slots):
		return shape{}, fmt.Errorf("channel: slots of %d bytes; want 1 or more, and %d of them below 2^62", slotSize, slots)
	}
	s := shape{slots: uint64(slots), slotSize: slotSize, stride: stride}
	s.setFlags(flags)
	return s, nil
}

// setFlags sets what the flags of the cursors say.
func (s *shape) setFlags(flags uint64) {
	s.streams, s.anyOrder = flags&flagStreams != 0, flags&flagAnyOrder != 0
}

// byStreams reports whether a stream may publish.
func (s shape) byStreams() bool { return s.streams || s.anyOrder }

// flags are those of the cursors.
func (s shape) flags() (flags uint64) {
	if s.streams {
		flags |= flagStreams
	}
	if s.anyOrder {
		flags |= flagAnyOrder
	}
	return flags
}

// allows returns why no reader of that policy is admitted, or nil. In a channel for streams the policy is the one by
// which the reader orders frames with the writer.
func (s shape) allows(p Policy) error {
	switch {
	case p == Block:
		return nil
	case s.streams:
		return fmt.Errorf("%w: the channel is for streams, where readers block: streams are given frames and slots before anybody knows whether this reader would be too slow for %s; block and latest are admitted", ErrPolicy, p)
	case s.anyOrder:
		return fmt.Errorf("%w: slots of the channel come back in any order, where readers block, so that a frame stays as it is while it is held; %s is not admitted", ErrPolicy, p)
	case s.slots == 1:
		return fmt.Errorf("%w: the channel has one slot, and %s takes one to write to beside the frame that is there; block is admitted, or a channel of more slots has to be made", ErrPolicy, p)
	}
	return nil
}

// size is that of the buffer.
func (s shape) size() uint64 { return s.slots * s.stride }

// cursorSize is that of the cursors of a reader.
func (s shape) cursorSize() uint64 {
	return (offEntries + s.slots*EntrySize + pageSize - 1) &^ (pageSize - 1)
}

// The sizes of the cursors of channels with the fewest and the most slots.
const (
	minCursorSize = offEntries + pageSize
	maxCursorSize = offEntries + MaxSlots*EntrySize
)

// write fills the head of cursors.
func (s shape) write(w words) {
	w.store(offMagic, binary.LittleEndian.Uint64([]byte(magic)))
	w.store(offVersion, layoutVersion)
	w.store(offSlots, s.slots)
	w.store(offSlotSize, s.slotSize)
	w.store(offStride, s.stride)
	w.store(offGeneration, s.generation)
	w.store(offFlags, s.flags())
}

// readShape reads the head that a writer has filled, and checks it against the buffer and
// the memory that came.
func readShape(w words, d vmm.Descriptor) (shape, error) {
	if w.load(offMagic) != binary.LittleEndian.Uint64([]byte(magic)) {
		return shape{}, fmt.Errorf("%w: the cursors do not begin with %q", ErrCursor, magic)
	}
	if v := w.load(offVersion); v != layoutVersion {
		return shape{}, fmt.Errorf("%w: cursors of version %d; this program knows %d", ErrCursor, v, layoutVersion)
	}
	flags := w.load(offFlags)
	s := shape{slots: w.load(offSlots), slotSize: w.load(offSlotSize), stride: w.load(offStride), generation: w.load(offGeneration)}
	s.setFlags(flags)
	switch {
	case flags > flagAnyOrder:
		return shape{}, fmt.Errorf("%w: flags %#x of the cursors are not known here, or contradict each other", ErrCursor, flags)
	case s.anyOrder && s.slots > mostAnyOrder:
		return shape{}, fmt.Errorf("%w: %d slots in any order; a channel has %d at most", ErrCursor, s.slots, mostAnyOrder)
	case s.slots < MinSlots || s.slots > MaxSlots || s.cursorSize() != uint64(len(w.b)):
		return shape{}, fmt.Errorf("%w: %d slots in cursors of %d bytes", ErrCursor, s.slots, len(w.b))
	case s.slotSize == 0 || s.slotSize > s.stride || s.stride > d.Size/s.slots:
		return shape{}, fmt.Errorf("%w: %d slots of %d bytes, %d apart, in a buffer of %d", ErrCursor, s.slots, s.slotSize, s.stride, d.Size)
	case s.generation != d.Generation:
		return shape{}, fmt.Errorf("%w: the cursors are of generation %d, and the buffer is of %d", ErrCursor, s.generation, d.Generation)
	}
	return s, nil
}

// entry is where the entry of frame number n begins, but with Latest.
func (s shape) entry(n uint64) int { return s.entryAt((n - 1) % s.slots) }

// entryAt is where the entry of that index begins.
func (s shape) entryAt(i uint64) int { return offEntries + int(i)*EntrySize }

// slotOf is the slot of a frame where slots follow each other.
func (s shape) slotOf(sequence uint64) uint64 { return (sequence - 1) % s.slots }

// returnedAt is where the reader says which frame in the slot it gave back last.
func returnedAt(slot uint64) int { return offReturned + 8*int(slot) }

// mapWords maps a file of cursors.
func mapWords(fd uintptr, size uint64) (words, error) {
	b, err := unix.Mmap(int(fd), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return words{}, fmt.Errorf("channel: mapping cursors of %d bytes: mmap: %w", size, err)
	}
	return words{b}, nil
}
