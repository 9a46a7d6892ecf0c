package pattern

import (
	"context"
	"encoding/binary"
	"errors"
)

// Piece is how many bytes the demo's programs fill and check at a time.
const Piece = 64 << 20

// Stream moves size bytes in pieces through two steps that overlap: fill makes
// the piece at offset in b, and use takes it while fill makes the next. It ends
// with the first error of either, or when ctx ends.
func Stream(ctx context.Context, size uint64, fill, use func(offset uint64, b []byte) error) error {
	ctx, cancel := context.WithCancel(ctx)
	full, free := make(chan piece), make(chan []byte, 2)
	done := make(chan struct{})
	var fillErr error // once full is closed
	go func() {
		defer close(done)
		defer close(full)
		fillErr = fillPieces(ctx, size, fill, full, free)
	}()
	defer func() {
		cancel()
		<-done // fill may still use its buffer
	}()
	for p := range full {
		if err := use(p.offset, p.b); err != nil {
			return err
		}
		free <- p.b
	}
	return fillErr
}

type piece struct {
	offset uint64
	b      []byte
}

// fillPieces makes pieces in buffers that come back through free, and the first
// ones in new buffers.
func fillPieces(ctx context.Context, size uint64, fill func(uint64, []byte) error, full chan<- piece, free <-chan []byte) error {
	for offset := uint64(0); offset < size; offset += Piece {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var b []byte
		if offset < 2*Piece {
			b = make([]byte, min(Piece, size-offset))
		} else {
			select {
			case b = <-free:
				b = b[:min(Piece, size-offset)]
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := fill(offset, b); err != nil {
			return err
		}
		select {
		case full <- piece{offset, b}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Meta is what the producer tells the consumer about the data: the offer's
// application data.
type Meta struct {
	Count uint64 // integers, a partial last one included
	Salt  uint32
}

// metaSize is Meta on the wire: count, salt, and four bytes of zero.
const metaSize = 16

// Encode makes the offer's application data.
func (m Meta) Encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, m.Count)
	b = binary.LittleEndian.AppendUint32(b, m.Salt)
	return binary.LittleEndian.AppendUint32(b, 0)
}

// DecodeMeta reads an offer's application data and checks it against the offer's
// size.
func DecodeMeta(b []byte, size uint64) (m Meta, err error) {
	if len(b) != metaSize || binary.LittleEndian.Uint32(b[12:]) != 0 {
		return m, errors.New("the offer's application data is not the demo's: the producer is another program")
	}
	m.Count, m.Salt = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])
	if m.Count != Count(size) {
		return m, errors.New("the offer's element count does not fit its size")
	}
	return m, nil
}
