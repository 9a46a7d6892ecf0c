package channel

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// EntrySize is how many bytes there are at [Frame].Meta.
const EntrySize = 256

// An Entry is what the writer says of a frame. Kernels find it at [Frame].Meta.
type Entry struct {
	Sequence uint64 // the frame's
	Index    int    // of the slot
	Size     uint64 // bytes of the frame
	Time     int64  // nanoseconds of CLOCK_MONOTONIC at which it was published ([Now])
	User     []byte // the application's own; a copy
}

// DecodeEntry reads the bytes of a copy of [Frame].Meta, EntrySize of them or more. The writer's stream describes a
// frame only if its Meta is not zero: else Meta has what was written last, of a frame with another Sequence, or nothing,
// which is an error.
//
// Errors: [ErrCursor] if b is too short, is of no frame, or of one that the writer was writing, or has values that
// no frame has.
func DecodeEntry(b []byte) (Entry, error) {
	if len(b) < EntrySize {
		return Entry{}, fmt.Errorf("%w: an entry of %d bytes; want %d, those at Frame.Meta", ErrCursor, len(b), EntrySize)
	}
	word := func(off int) uint64 { return binary.LittleEndian.Uint64(b[off:]) }
	stamp, slot, length := word(entryStamp), word(entrySlot), word(entryLength)
	switch {
	case stamp == 0:
		return Entry{}, fmt.Errorf("%w: the entry is of no frame: the writer has said nothing of one there", ErrCursor)
	case stamp%2 != 0:
		return Entry{}, fmt.Errorf("%w: the entry is being written, or its frame is not whole any more (stamp %d)", ErrCursor, stamp)
	case slot >= MaxSlots || length > MaxUser:
		return Entry{}, fmt.Errorf("%w: an entry of slot %d with %d user bytes; want less than %d slots, and %d bytes at most", ErrCursor, slot, length, MaxSlots, MaxUser)
	}
	return Entry{Sequence: word(entrySequence), Index: int(slot), Size: word(entryBytes), Time: int64(word(entryTime)),
		User: slices.Clone(b[entryUser : entryUser+length])}, nil
}
