package cli

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Size is a flag of bytes, with the units KiB, MiB, GiB and TiB.
type Size uint64

var units = []struct {
	name  string
	shift int
}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"B", 0}}

// Set reads a positive number of bytes: "4096", "64KiB", "2GiB".
func (s *Size) Set(text string) error {
	number, shift := text, 0
	for _, u := range units {
		if n, ok := strings.CutSuffix(text, u.name); ok {
			number, shift = strings.TrimSpace(n), u.shift
			break
		}
	}
	v, err := strconv.ParseUint(number, 10, 64)
	switch {
	case err != nil:
		return fmt.Errorf("want a whole number of bytes, or of KiB, MiB or GiB")
	case v == 0:
		return fmt.Errorf("want more than 0 bytes")
	case bits.LeadingZeros64(v) < shift:
		return fmt.Errorf("more than 64 bits can count")
	}
	*s = Size(v << shift)
	return nil
}

// String prints the size in the largest unit that divides it.
func (s Size) String() string {
	for _, u := range units {
		if s != 0 && s%(1<<u.shift) == 0 && u.shift > 0 {
			return fmt.Sprintf("%d%s", s>>u.shift, u.name)
		}
	}
	return strconv.FormatUint(uint64(s), 10)
}

// Human prints n bytes for people: "139.8 GiB".
func Human(n uint64) string {
	for _, u := range units {
		if u.shift > 0 && n >= 1<<u.shift {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/float64(uint64(1)<<u.shift)), ".0") + " " + u.name
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// Count is n things in words: "1 process", "2 processes".
func Count[N int | uint64](n N, thing string) string {
	switch {
	case n == 1:
		return "1 " + thing
	case strings.HasSuffix(thing, "s"):
		thing += "e"
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
