package wire

import (
	"errors"
	"fmt"
)

// A field stands behind what the table of a record's type describes. It is a number and a
// length of two bytes each, and a value. Fields come in the order of their numbers, each
// once. A receiver skips a field that it does not know, but refuses it if its number has
// the highest bit.
const fieldRequired uint16 = 0x8000

// Numbers of fields.
const (
	fieldCapabilities uint16 = 1 // u64
	fieldProcess      uint16 = 2 // u64
	fieldAfter        uint16 = 3 // u64
	fieldDataSize     uint16 = 4 // u64
	fieldCursorSize   uint16 = 5 // u64
	fieldReason       uint16 = 6 // u64

	fieldResume   = fieldRequired | 1 // u64
	fieldReattach = fieldRequired | 2 // u64
)

// fields reads the fields of m to the end of the record.
func (r *reader) fields(m decoder) error {
	for last := -1; len(r.b) > 0; {
		number, size := r.u16(), int(r.u16())
		if r.short || size > len(r.b) {
			r.short = true
			return nil
		}
		value := reader{b: r.take(size)}
		if int(number) <= last {
			return fmt.Errorf("field %d behind field %d", number, last)
		}
		last = int(number)
		known, err := m.field(number, &value)
		switch {
		case value.short:
			return fmt.Errorf("field %d: %d bytes are too few", number, size)
		case err != nil:
			return fmt.Errorf("field %d: %w", number, err)
		case !known && number&fieldRequired != 0:
			return fmt.Errorf("%w: field %d", ErrUnsupported, number)
		}
	}
	return nil
}

// appendField writes a field of up to 65,535 bytes.
func appendField(b []byte, number uint16, value []byte) []byte {
	b = le.AppendUint16(b, number)
	b = le.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}

// appendNumber writes a field that is a number, unless that is 0.
func appendNumber(b []byte, number uint16, value uint64) []byte {
	if value == 0 {
		return b
	}
	return appendField(b, number, le.AppendUint64(nil, value))
}

// generation reads the generation of memory that a consumer knows.
func generation(value *reader) (g uint64, err error) {
	if g = value.u64(); g == 0 && !value.short {
		err = errors.New("generation 0 is no memory's")
	}
	return g, err
}

// append writes capabilities, unless there are none.
func (c Capabilities) append(b []byte) []byte {
	return appendNumber(b, fieldCapabilities, uint64(c))
}

// field reads capabilities. A longer value is of a later version; its first 64 bits are
// these.
func (c *Capabilities) field(number uint16, value *reader) (known bool, err error) {
	if number != fieldCapabilities {
		return false, nil
	}
	*c = Capabilities(value.u64())
	return true, nil
}

// append writes what the side says of its process, if anything.
func (p Process) append(b []byte) []byte {
	if !p.Told {
		return b
	}
	return appendField(b, fieldProcess, le.AppendUint64(nil, uint64(p.Flags)))
}

// field reads what the side says of its process. A longer value is of a later version.
func (p *Process) field(number uint16, value *reader) (known bool, err error) {
	if number != fieldProcess {
		return false, nil
	}
	*p = Process{true, ProcessFlags(value.u64())}
	return true, nil
}

// noFields is a message without fields of its own.
type noFields struct{}

func (noFields) field(uint16, *reader) (known bool, err error) { return false, nil }
