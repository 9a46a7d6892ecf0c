// Package wire is the wire format of docs/wire.md: its messages, and how each is
// written as a record and read from one. It knows no connection: package share
// decides who says what when.
//
// A record is a header, what the table of its type describes, and any number of
// fields behind that. The format grows by fields, by types, by capabilities and by
// flags; each says by its number whether a peer that does not know it may ignore it.
// CONTRIBUTING.md says how to add one.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/internal/plain"
)

// Version is the version of the wire format that this package speaks.
const Version = 1

const (
	// MaxRecord is the longest record that either side takes, in bytes. The longest
	// record of this version is shorter, as docs/wire.md says; the rest is room for new
	// fields.
	MaxRecord = 8 << 10

	headerSize = 16
	magic      = "GPFD"
)

// Errors of [Decode].
var (
	// ErrProtocol matches every error about a peer that breaks the protocol, such as ErrMalformed.
	ErrProtocol = errors.New("the peer breaks the protocol")
	// ErrMalformed matches every error about a record that is not as docs/wire.md
	// says.
	ErrMalformed = plain.ErrorOf("malformed record", ErrProtocol)
	// ErrUnsupported says that a record has something that a receiver must understand
	// and this package does not. The error names it.
	ErrUnsupported = errors.New("the peer uses what this program does not know")
	// ErrVersion says that the peer speaks another version of the wire format. It matches ErrUnsupported.
	ErrVersion = plain.ErrorOf("other version of the wire format", ErrUnsupported)
)

// Flags of a record. A receiver ignores those of the lower half that it does not
// know, and refuses a record with one of the upper half that it does not know.
const (
	flagIgnorable uint32 = 1 // a receiver that does not know the type ignores the record
	flagsRequired uint32 = 0xffff0000
)

// Capabilities are bits for what a side takes beyond what every version 1 takes. They are
// a field of the first record of each side.
type Capabilities uint64

const (
	TakesLegacy Capabilities = 1 << 0 // a consumer takes offers by a legacy handle
	TakesData   Capabilities = 1 << 1 // a consumer takes application data in a DATA

	TakesCursors Capabilities = 1 << 2 // a consumer takes memory of its own in a CURSORS
	TakesDetach  Capabilities = 1 << 3 // a producer takes DETACHED, and a wish to reattach
)

// Process is what a side says of its process. An older side says nothing.
type Process struct {
	Told  bool // the side has said it
	Flags ProcessFlags
}

// ProcessFlags are the bits of a Process. Unknown bits are ignored.
type ProcessFlags uint64

// The bits that a side sends about its process.
const (
	ProcessMPS   ProcessFlags = 1 << 0 // its work may go on after its end: it runs under MPS
	ProcessWaits ProcessFlags = 1 << 1 // in an offer: it waits until consumers that may write have released the memory
)

var le = binary.LittleEndian

// Encode makes the record of m.
func Encode(m Message) []byte { return Append(make([]byte, 0, 512), m) }

// Append writes the record of m to the end of b, which is empty.
func Append(b []byte, m Message) []byte {
	b = append(b, magic...)
	b = le.AppendUint16(b, Version)
	b = le.AppendUint16(b, uint16(m.Type()))
	b = le.AppendUint32(b, flags(m))
	b = le.AppendUint32(b, 0) // length, below
	b = m.append(b)
	le.PutUint32(b[12:], uint32(len(b)-headerSize))
	return b
}

func flags(m Message) uint32 {
	switch m.(type) {
	case Farewell, Notice, Superseded, Unknown:
		return flagIgnorable
	}
	return 0
}

// Decode reads one record. The message does not refer to record. An unknown record that may
// be ignored is an [Unknown].
func Decode(record []byte) (Message, error) {
	r := reader{b: record}
	if string(r.take(4)) != magic {
		return nil, fmt.Errorf("%w: it does not begin with %q; the peer is no gpufd program", ErrMalformed, magic)
	}
	if v := r.u16(); v != Version && !r.short {
		return nil, fmt.Errorf("%w: the peer speaks %d, this program %d", ErrVersion, v, Version)
	}
	typ, flags, length := Type(r.u16()), r.u32(), r.u32()
	switch {
	case r.short:
		return nil, fmt.Errorf("%w: %d bytes are no header", ErrMalformed, len(record))
	case uint64(length) != uint64(len(record)-headerSize):
		return nil, fmt.Errorf("%w: it says %d bytes follow the header and %d do", ErrMalformed, length, len(record)-headerSize)
	case flags&flagsRequired != 0:
		return nil, fmt.Errorf("%w: flags %#x of %s", ErrUnsupported, flags&flagsRequired, typ)
	}
	m := typ.message()
	if m == nil {
		return unknown(typ, flags)
	}
	return r.message(m)
}

// unknown returns the message for a record of an unknown type.
func unknown(typ Type, flags uint32) (Message, error) {
	if flags&flagIgnorable == 0 {
		return nil, fmt.Errorf("%w: records of %s", ErrUnsupported, typ)
	}
	return Unknown{typ}, nil
}

// message reads the rest of a record into m.
func (r *reader) message(m decoder) (Message, error) {
	err := m.read(r)
	if err == nil && !r.short {
		err = r.fields(m)
	}
	switch {
	case errors.Is(err, ErrUnsupported):
		return nil, fmt.Errorf("%s: %w", m.message().Type(), err)
	case r.short:
		return nil, fmt.Errorf("%w: %s: too short", ErrMalformed, m.message().Type())
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %w", ErrMalformed, m.message().Type(), err)
	}
	return m.message(), nil
}
