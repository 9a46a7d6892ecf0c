package launch

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A half is a number of 16 bits, 5 of them for its exponent. A bfloat has 8 for it.
type (
	half   uint16
	bfloat uint16
)

// String prints its bits, as an argument takes them.
func (h half) String() string { return fmt.Sprintf("bits:%#04x", uint16(h)) }

// String prints its bits, as an argument takes them.
func (b bfloat) String() string { return fmt.Sprintf("bits:%#04x", uint16(b)) }

// A format is how many bits of a number are for its exponent and its fraction. One is for the sign.
type format struct{ exponent, fraction int }

var formats = map[string]format{"f16": {5, 10}, "bf16": {8, 7}, "f32": {8, 23}, "f64": {11, 52}}

func (f format) bits() int { return 1 + f.exponent + f.fraction }

// infinite returns the bits of positive infinity.
func (f format) infinite() uint64 { return (1<<f.exponent - 1) << f.fraction }

// parseFloat reads a number, or its bits behind bits:.
func parseFloat(kind, text string) (any, error) {
	f := formats[kind]
	if pattern, ok := strings.CutPrefix(text, "bits:"); ok {
		digits, base := inBase(pattern)
		v, err := strconv.ParseUint(digits, base, f.bits())
		if err != nil {
			return nil, fmt.Errorf("bits: want a whole number of %d bits, decimal or 0x", f.bits())
		}
		return floatOf(kind, v), nil
	}
	if isHex(strings.TrimLeft(text, "+-")) && !strings.ContainsAny(text, "pP") {
		text += "p0" // a whole number
	}
	size := 64
	if kind == "f32" {
		size = 32
	}
	v, err := strconv.ParseFloat(text, size)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return nil, errors.New("want a number such as 2, -1e-3 or 0x1.8p3, or bits: and its bits")
	}
	bits := f.rounded(v)
	if err != nil || bits&(1<<(f.bits()-1)-1) == f.infinite() && !math.IsInf(v, 0) {
		return nil, fmt.Errorf("more than %d bits can hold", f.bits())
	}
	return floatOf(kind, bits), nil
}

// floatOf is the number of that kind that has those bits.
func floatOf(kind string, bits uint64) any {
	switch kind {
	case "f16":
		return half(bits)
	case "bf16":
		return bfloat(bits)
	case "f32":
		return math.Float32frombits(uint32(bits))
	}
	return math.Float64frombits(bits)
}

// rounded returns the bits of the number that is nearest to v, and of two the even one.
func (f format) rounded(v float64) uint64 {
	sign := math.Float64bits(v) >> 63 << (f.bits() - 1)
	switch {
	case math.IsNaN(v):
		return sign | f.infinite() | 1<<(f.fraction-1)
	case math.IsInf(v, 0):
		return sign | f.infinite()
	case v == 0:
		return sign
	}
	bias := 1<<(f.exponent-1) - 1
	_, e := math.Frexp(math.Abs(v))
	e = max(e-1, 1-bias) // of the first bit; the smallest numbers have none before the point
	units := uint64(math.RoundToEven(math.Ldexp(math.Abs(v), f.fraction-e)))
	exponent := uint64(e + bias - 1) // units have a bit for 1 of their own, which adds 1
	return sign | min(exponent<<f.fraction+units, f.infinite())
}
