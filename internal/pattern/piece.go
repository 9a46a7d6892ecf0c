package pattern

import (
	"encoding/binary"
	"errors"
)

// Piece is how many bytes the demo's programs fill and check at a time.
const Piece = 64 << 20

// Pieces calls f for each piece of size bytes, with its offset.
func Pieces(size uint64, f func(offset, n uint64) error) error {
	for offset := uint64(0); offset < size; offset += Piece {
		if err := f(offset, min(Piece, size-offset)); err != nil {
			return err
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

// DecodeMeta reads an offer's application data and holds it against the
// offer's size.
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
