package wire

import (
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/gpufd/gpufd/gpumem"
)

// Limits of a record's contents, in bytes.
const (
	MaxName = 255  // the name of an offer
	MaxData = 4096 // application data in an offer; more comes in a Data
	MaxText = 4096 // a text for people

	MaxNotice = 4096 // a notice
)

// A reader takes values off the front of b. If b is too short, the value is zero and
// short is set.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if len(r.b) < n {
		r.short, r.b = true, nil
		return make([]byte, n)
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) u8() uint8   { return r.take(1)[0] }
func (r *reader) u16() uint16 { return le.Uint16(r.take(2)) }
func (r *reader) u32() uint32 { return le.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return le.Uint64(r.take(8)) }

// flag takes a byte that is 0 or 1.
func (r *reader) flag() (bool, error) {
	v := r.u8()
	if v > 1 {
		return false, fmt.Errorf("%d is neither 0 nor 1", v)
	}
	return v == 1, nil
}

// text takes a length and as much UTF-8, for people.
func (r *reader) text(limit int) (string, error) {
	n := int(r.u16())
	if n > limit {
		return "", fmt.Errorf("a text of %d bytes; %d are allowed", n, limit)
	}
	s := string(r.take(n))
	if !utf8.ValidString(s) {
		return "", errors.New("a text that is not UTF-8")
	}
	return s, nil
}

// CheckAccess refuses an access that cannot be asked for or offered.
func CheckAccess(a gpumem.Access) error {
	if a != gpumem.ReadOnly && a != gpumem.ReadWrite {
		return fmt.Errorf("access %d; %d and %d are known", uint32(a), uint32(gpumem.ReadOnly), uint32(gpumem.ReadWrite))
	}
	return nil
}

// CheckName refuses an empty or long name, and one that could harm a terminal.
func CheckName(s string) error {
	if s == "" || len(s) > MaxName || !utf8.ValidString(s) {
		return fmt.Errorf("offer name of %d bytes; 1 to %d of UTF-8 are allowed", len(s), MaxName)
	}
	for _, c := range s {
		if unicode.IsControl(c) {
			return fmt.Errorf("offer name %q holds a control character", s)
		}
	}
	return nil
}
