package weights

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrFormat says that the publisher wrote a frame, a table or metadata that breaks the format.
var ErrFormat = errors.New("weights: bad format")

const (
	bucketSize = 80 // of a frame's own bytes
	magic      = "GFWU"

	flagFirst   = 1
	flagLast    = 2
	flagGivenUp = 4

	maxTable   = 8 << 20 // bytes of a table
	maxTensors = 1 << 20 // in an update
	tableAlign = 8
)

// A bucket is what the own bytes of a frame say. docs/wire.md describes them byte by byte.
type bucket struct {
	first, last, givenUp bool

	number  uint64 // of the update
	step    int64
	index   uint32 // in the update
	tensors uint32

	at, size uint64 // of the table, in the frame
	digest   [sha256.Size]byte
}

// parseBucket reads the own bytes of a frame, and checks all that needs no table.
func parseBucket(own []byte, frame uint64) (b bucket, err error) {
	if len(own) != bucketSize {
		return b, fmt.Errorf("%w: a frame with %d bytes of its own; want %d", ErrFormat, len(own), bucketSize)
	}
	if string(own[:4]) != magic {
		return b, fmt.Errorf("%w: a frame that begins with %q; want %q", ErrFormat, own[:4], magic)
	}
	le := binary.LittleEndian
	flags := le.Uint32(own[4:])
	b = bucket{
		first: flags&flagFirst != 0, last: flags&flagLast != 0, givenUp: flags&flagGivenUp != 0,
		number: le.Uint64(own[8:]), step: int64(le.Uint64(own[16:])), index: le.Uint32(own[24:]), tensors: le.Uint32(own[28:]),
		at: le.Uint64(own[32:]), size: le.Uint64(own[40:]), digest: [sha256.Size]byte(own[48:]),
	}
	if flags&^(flagFirst|flagLast|flagGivenUp) != 0 {
		return b, fmt.Errorf("%w: flags %#x of a frame are not known here", ErrFormat, flags)
	}
	return b, b.check(frame)
}

// check finds fields that contradict each other or the size of the frame.
func (b *bucket) check(frame uint64) error {
	switch {
	case b.number == 0:
		return fmt.Errorf("%w: update 0; they count from 1", ErrFormat)
	case b.first != (b.index == 0):
		return fmt.Errorf("%w: bucket %d of update %d with first %t; bucket 0 is the first, and no other", ErrFormat, b.index, b.number, b.first)
	case b.givenUp && (b.last || b.tensors > 0):
		return fmt.Errorf("%w: update %d is given up by a frame with %d tensors and last %t; want none and false", ErrFormat, b.number, b.tensors, b.last)
	case (b.tensors == 0) != (b.size == 0):
		return fmt.Errorf("%w: a table of %d bytes for %d tensors", ErrFormat, b.size, b.tensors)
	case b.tensors == 0:
		return nil
	case b.tensors > maxTensors || b.size > maxTable:
		return fmt.Errorf("%w: a table of %d tensors and %d bytes; want %d and %d at most", ErrFormat, b.tensors, b.size, maxTensors, maxTable)
	case b.at%tableAlign != 0 || b.size > frame || b.at > frame-b.size:
		return fmt.Errorf("%w: a table of %d bytes at %d in a frame of %d; want a multiple of %d", ErrFormat, b.size, b.at, frame, tableAlign)
	}
	return nil
}

// suits checks that a table is the one that the frame means.
func (b *bucket) suits(t *table) error {
	if len(t.entries) != int(b.tensors) {
		return fmt.Errorf("%w: a table of %d tensors in a frame of %d", ErrFormat, len(t.entries), b.tensors)
	}
	if t.end > b.at {
		return fmt.Errorf("%w: tensors end at %d, and the table begins at %d", ErrFormat, t.end, b.at)
	}
	return nil
}

// alone reports whether the frame is all of its update.
func (b *bucket) alone() bool { return b.first && (b.last || b.givenUp) }
