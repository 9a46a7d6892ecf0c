package cli

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/gpufd/gpufd/internal/plain"
)

// Size is a flag of bytes, with the units KiB, MiB, GiB and TiB, or K, M, G and T for
// short.
type Size uint64

// A unit is a power of two.
type unit struct {
	name  string
	shift int
}

var (
	units   = []unit{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}}
	letters = []unit{{"T", 40}, {"G", 30}, {"M", 20}, {"K", 10}} // as dd(1) and head(1) take them
)

// Errors of a count.
var (
	errNotWhole = errors.New("want a whole number")
	errTooMany  = errors.New("more than 64 bits can count")
)

// Set reads a positive number of bytes: "4096", "0x1000", "64KiB", "64K", "2GiB".
func (s *Size) Set(text string) error {
	v, err := scaled(text, slices.Concat(units, letters, []unit{{"B", 0}}))
	switch {
	case errors.Is(err, errNotWhole):
		return errors.New("want a whole number of bytes, or of KiB, MiB or GiB")
	case err != nil:
		return err
	case v == 0:
		return errors.New("want more than 0 bytes")
	}
	*s = Size(v)
	return nil
}

// ParseCount reads a whole number: decimal, with 0x, or with K, M, G or T for the powers
// of 1024. For one that needs more than 64 bits, it returns the largest of 64 bits.
func ParseCount(text string) (uint64, error) {
	v, err := scaled(text, letters)
	if errors.Is(err, errTooMany) {
		return math.MaxUint64, nil
	}
	return v, err
}

// scaled reads a number with one of units behind it, or none.
func scaled(text string, units []unit) (uint64, error) {
	shift, base := 0, 10
	number, isHex := strings.CutPrefix(text, "0x")
	if isHex {
		base = 16
	}
	for _, u := range units {
		n, ok := strings.CutSuffix(number, u.name)
		if ok && !(isHex && u.name == "B") { // which is a digit there
			number, shift = strings.TrimSpace(n), u.shift
			break
		}
	}
	v, err := strconv.ParseUint(number, base, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && bits.LeadingZeros64(v) < shift:
		return 0, errTooMany
	case err != nil:
		return 0, errNotWhole
	}
	return v << shift, nil
}

// Type names the type for package pflag.
func (s *Size) Type() string { return "size" }

// String prints the size in the largest unit that divides it.
func (s Size) String() string {
	for _, u := range units {
		if s != 0 && s%(1<<u.shift) == 0 {
			return fmt.Sprintf("%d%s", s>>u.shift, u.name)
		}
	}
	return strconv.FormatUint(uint64(s), 10)
}

// Human prints n bytes for people: "139.8 GiB".
func Human(n uint64) string {
	for _, u := range units {
		if n >= 1<<u.shift {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/float64(uint64(1)<<u.shift)), ".0") + " " + u.name
		}
	}
	return Count(n, "byte")
}

// PartOf returns progress for people: "1 MiB of 4 MiB (25 %)". The numbers may come from a
// peer, and be nonsense.
func PartOf(done, total uint64) string {
	part := 100 * float64(done) / float64(max(total, 1))
	return fmt.Sprintf("%s of %s (%.0f %%)", Human(done), Human(total), min(math.Floor(part), 100))
}

// Count returns n things in words: "1 process", "2 processes".
func Count[N int | uint64](n N, thing string) string { return plain.Count(n, thing) }
