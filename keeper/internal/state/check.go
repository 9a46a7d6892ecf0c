package state

import (
	"encoding/hex"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gpufd/gpufd/gpumem"
)

// The bounds of what a writer may say.
const (
	MaxName        = 200 // bytes of a name
	MaxTransaction = 64  // bytes of a transaction's id
	MaxParts       = 256 // of a version
	MaxLabels      = 32
	MaxLabelKey    = 64  // bytes
	MaxLabelValue  = 256 // bytes
	MaxReason      = 256 // bytes of the reason of a report
	MaxPart        = 1 << 50
)

// CheckName refuses what cannot be a name of kept memory: more than MaxName bytes,
// bytes that are not UTF-8, control characters, an '@', and a '/' followed only by
// digits, which readers take for a part.
func CheckName(name string) error {
	if err := checkText("name", name, MaxName); err != nil {
		return err
	}
	if name == "" {
		return fail(BadRequest, "a name of 0 bytes; 1 to %d are allowed", MaxName)
	}
	if strings.Contains(name, "@") {
		return fail(BadRequest, "name %q has an '@', which is for versions", name)
	}
	if i := strings.LastIndexByte(name, '/'); i >= 0 && isDigits(name[i+1:]) {
		return fail(BadRequest, "name %q ends as part %s of %q does; let it end in a letter", name, name[i+1:], name[:i])
	}
	return nil
}

func isDigits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// checkText refuses what would be trouble on a terminal or in JSON.
func checkText(what, s string, limit int) error {
	if len(s) > limit || !utf8.ValidString(s) {
		return fail(BadRequest, "a %s of %d bytes; %d of UTF-8 are allowed", what, len(s), limit)
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		return fail(BadRequest, "%s %q holds a control character", what, s)
	}
	return nil
}

func checkLabels(labels map[string]string) error {
	if len(labels) > MaxLabels {
		return fail(BadRequest, "%d labels; %d are allowed", len(labels), MaxLabels)
	}
	for k, v := range labels {
		if k == "" {
			return fail(BadRequest, "a label without a key, of value %q", v)
		}
		if err := checkText("label's key", k, MaxLabelKey); err != nil {
			return err
		}
		if err := checkText("label's value", v, MaxLabelValue); err != nil {
			return err
		}
	}
	return nil
}

// The first characters of a digest of bytes, and of one of a layout.
const (
	digestPrefix = "gpufd-d1:"
	layoutPrefix = "gpufd-l1:"
)

// checkDigest returns an error unless s is a prefix and 32 digits.
func checkDigest(what, s, prefix string) error {
	digits, ok := strings.CutPrefix(s, prefix)
	if b, err := hex.DecodeString(digits); !ok || err != nil || len(b) != 16 || strings.ToLower(digits) != digits {
		return fail(BadRequest, "%s %.80q; want %q and 32 hexadecimal digits in lower case", what, s, prefix)
	}
	return nil
}

// check refuses a booking that makes no sense in any state.
func (b *Booking) check() error {
	if err := CheckName(b.Name); err != nil {
		return err
	}
	if err := checkText("transaction's id", b.Transaction, MaxTransaction); err != nil {
		return err
	}
	if err := checkLabels(b.Labels); err != nil {
		return err
	}
	switch {
	case b.Parts < 1 || b.Parts > MaxParts:
		return fail(BadRequest, "a version of %d parts; 1 to %d are allowed", b.Parts, MaxParts)
	case b.Index < 0 || b.Index >= b.Parts:
		return fail(BadRequest, "part %d of %d: the first is 0", b.Index, b.Parts)
	case b.Transaction == "" && b.Parts != 1:
		return fail(BadRequest, "a version of %d parts without a transaction: give all its parts the same transaction's id", b.Parts)
	case b.Bytes == 0 || b.Bytes > MaxPart:
		return fail(BadRequest, "a part of %d bytes; 1 to %d are allowed", b.Bytes, uint64(MaxPart))
	case b.Kind != gpumem.CUDA && b.Kind != gpumem.Soft:
		return fail(BadRequest, "memory of driver %d; %s and %s are known", b.Kind, gpumem.CUDA, gpumem.Soft)
	}
	return b.checkTimes()
}

func (b *Booking) checkTimes() error {
	switch {
	case b.Deadline.IsZero() && b.Transaction != "":
		return fail(BadRequest, "a transaction without a deadline: its parts would stay for ever if one did not come")
	case !b.Deadline.IsZero() && !b.At.Before(b.Deadline):
		return fail(Expired, "the deadline %s of part %d of %q has passed: book it anew", stamp(b.Deadline), b.Index, b.Name)
	}
	return nil
}

// check returns an error unless p is the part that was booked.
func (p *Part) check(b *booked) error {
	switch {
	case p.Index != b.Index:
		return fail(BadRequest, "part %d was delivered for part %d", p.Index, b.Index)
	case p.Bytes != b.Bytes || p.Memory.Size != b.Bytes:
		return fail(BadRequest, "part %d has %d bytes in memory of %d; %d were booked", p.Index, p.Bytes, p.Memory.Size, b.Bytes)
	case p.Memory.Device != b.Device || p.Memory.Kind != b.Kind:
		return fail(BadRequest, "part %d is on %s (%s); %s (%s) was booked", p.Index, p.Memory.Device, p.Memory.Kind, b.Device, b.Kind)
	case (p.Files == 0) == (len(p.Parked) == 0) || p.Files != 0 && p.Files == p.Table:
		return fail(BadRequest, "part %d has no descriptors of its own", p.Index)
	case (p.Table == 0) != (p.TableSize == 0):
		return fail(BadRequest, "part %d has table %d of %d bytes; either both are zero or neither", p.Index, p.Table, p.TableSize)
	}
	if err := checkDigest("digest", p.Digest, digestPrefix); err != nil || p.Layout == "" {
		return err
	}
	return checkDigest("layout", p.Layout, layoutPrefix)
}

// instant returns t as a manifest can say it: to the nanosecond, in years that JSON has.
func instant(t time.Time) time.Time {
	switch t = t.UTC().Round(0); {
	case t.Year() < 1:
		return time.Time{}
	case t.Year() > 9999:
		return time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	}
	return t
}

func stamp(t time.Time) string { return t.Format(time.RFC3339) }

// plus adds, and stays at the largest number.
func plus(a, b uint64) uint64 {
	if a+b < a {
		return 1<<64 - 1
	}
	return a + b
}
