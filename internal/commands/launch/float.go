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

// floatBits is how many bits there are in a number of that kind.
var floatBits = map[string]int{"f16": 16, "bf16": 16, "f32": 32, "f64": 64}

// parseFloat reads a number, or its bits behind bits:.
func parseFloat(kind, text string) (any, error) {
	if pattern, ok := strings.CutPrefix(text, "bits:"); ok {
		digits, base := inBase(pattern)
		v, err := strconv.ParseUint(digits, base, floatBits[kind])
		if err != nil {
			return nil, fmt.Errorf("bits: want a whole number of %d bits, decimal or 0x", floatBits[kind])
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
	bits := rounded(kind, v)
	if err != nil || isInfinite(kind, bits) && !math.IsInf(v, 0) {
		return nil, fmt.Errorf("more than %d bits can hold", floatBits[kind])
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

// rounded is the bits of the number of that kind that is nearest to v.
func rounded(kind string, v float64) uint64 {
	switch kind {
	case "f16":
		return narrowed(v, 5, 10)
	case "bf16":
		return narrowed(v, 8, 7)
	case "f32":
		return uint64(math.Float32bits(float32(v)))
	}
	return math.Float64bits(v)
}

// isInfinite reports whether the number of that kind with those bits is infinite.
func isInfinite(kind string, bits uint64) bool {
	infinite := map[string]uint64{"f16": 0x7c00, "bf16": 0x7f80, "f32": 0x7f80_0000, "f64": 0x7ff0_0000_0000_0000}
	return bits&(1<<(floatBits[kind]-1)-1) == infinite[kind]
}

// narrowed rounds v to a number with so many bits for its exponent and its fraction, to
// the even one of two that are as near.
func narrowed(v float64, exponentBits, fractionBits int) uint64 {
	sign := math.Float64bits(v) >> 63 << (exponentBits + fractionBits)
	most := uint64(1)<<exponentBits - 1
	switch {
	case math.IsNaN(v):
		return sign | most<<fractionBits | 1<<(fractionBits-1)
	case math.IsInf(v, 0):
		return sign | most<<fractionBits
	case v == 0:
		return sign
	}
	bias := 1<<(exponentBits-1) - 1
	_, e := math.Frexp(math.Abs(v))
	e = max(e-1, 1-bias) // of the first bit; the smallest numbers have none before the point
	units := uint64(math.RoundToEven(math.Ldexp(math.Abs(v), fractionBits-e)))
	exponent := uint64(e + bias - 1) // units have a bit for 1 of their own, which adds 1
	return sign | min(exponent<<fractionBits+units, most<<fractionBits)
}
