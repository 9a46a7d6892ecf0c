package ptx

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
)

// roundingCases are operands of a layout: edges, numbers of like sizes, and any.
func roundingCases(name string, n int) (list [][3]uint64) {
	seed := uint64(n)
	next := func() uint64 {
		seed += 0x9e3779b97f4a7c15
		return mix(seed)
	}
	for range n {
		var c [3]uint64
		for k := range c {
			c[k] = operandOf(name, next(), next())
			if bits := bitsOf(name); bits < 64 {
				c[k] &= 1<<bits - 1
			}
		}
		list = append(list, c)
	}
	return list
}

// bigRounded rounds a number as a layout has it, by way of math/big, which is
// given a subnormal's fewer bits.
func bigRounded(l *layout, v *big.Float, mode rounding) uint64 {
	modes := map[rounding]big.RoundingMode{toEven: big.ToNearestEven, toZero: big.ToZero, down: big.ToNegativeInf, up: big.ToPositiveInf, away: big.ToNearestAway}
	sign := boolBits(v.Signbit()) * l.sign()
	if v.Sign() == 0 {
		return sign
	}
	exp := v.MantExp(nil) - 1 // of the leading bit
	prec := l.fraction + 1
	least := 1 - l.bias
	if exp < least {
		prec -= least - exp
	}
	if prec < 1 { // below half of the smallest, or just above
		smallest := new(big.Float).SetMantExp(big.NewFloat(1), least-l.fraction)
		half := new(big.Float).SetMantExp(big.NewFloat(1), least-l.fraction-1)
		abs := new(big.Float).SetPrec(4000).Abs(v)
		up1 := false
		switch mode {
		case toEven:
			up1 = abs.Cmp(half) > 0
		case away:
			up1 = abs.Cmp(half) >= 0
		case up:
			up1 = !v.Signbit()
		case down:
			up1 = v.Signbit()
		}
		if !up1 {
			return sign
		}
		v = smallest
		if sign != 0 {
			v = new(big.Float).Neg(smallest)
		}
		prec = 1
	}
	r := new(big.Float).SetMode(modes[mode]).SetPrec(uint(prec)).Set(v)
	exp = r.MantExp(nil) - 1
	if exp > l.bias {
		return sign | l.overflow(sign != 0, mode)
	}
	q := max(exp, least) - l.fraction
	m, _ := new(big.Float).SetMantExp(new(big.Float).Abs(r), -q).Uint64()
	return sign | uint64(max(exp, least)+l.bias-1)<<l.fraction + m
}

func finite(l *layout, values ...uint64) bool {
	for _, v := range values {
		if l.isNaN(v) || l.isInf(v) {
			return false
		}
	}
	return true
}

func bigOf(l *layout, v uint64) *big.Float {
	return new(big.Float).SetPrec(4000).SetMode(big.ToZero).SetFloat64(l.value(v))
}

// bigRoot is a root, cut off after so many bits that what is lost, if anything, is
// one more bit.
func bigRoot(e exact) *big.Float {
	const more = 400
	n := new(big.Int).Lsh(new(big.Int).SetUint64(e.mant), more)
	exp := e.exp - more
	if exp%2 != 0 {
		n.Lsh(n, 1)
		exp--
	}
	root := new(big.Int).Sqrt(n)
	rest := new(big.Int).Sub(n, new(big.Int).Mul(root, root))
	root.Lsh(root, 1)
	root.Or(root, big.NewInt(int64(min(1, rest.BitLen()))))
	return new(big.Float).SetMantExp(new(big.Float).SetPrec(4000).SetInt(root), exp/2-1)
}

// Every operation is rounded as math/big rounds it, in every way, for every layout.
func TestRoundingAgainstBig(t *testing.T) {
	for name, l := range map[string]*layout{"f16": half, "bf16": brain, "f32": single, "f64": double} {
		for _, c := range roundingCases(name, 4000) {
			if !finite(l, c[:]...) {
				continue
			}
			x, y, z := bigOf(l, c[0]), bigOf(l, c[1]), bigOf(l, c[2])
			for _, mode := range []rounding{toEven, toZero, down, up, away} {
				check := func(op string, v *big.Float, got uint64) {
					if v.Sign() != 0 {
						require.Equal(t, bigRounded(l, v, mode), got, "%s %s %x %d", op, name, c, mode)
					} else {
						require.Zero(t, got&^l.sign(), "%s %s %x %d", op, name, c, mode)
					}
				}
				check("fma", new(big.Float).SetPrec(4300).Add(new(big.Float).SetPrec(4300).Mul(x, y), z), l.fma(c[0], c[1], c[2], mode))
				check("add", new(big.Float).Add(x, y), l.add(c[0], c[1], mode))
				check("sub", new(big.Float).Sub(x, y), l.sub(c[0], c[1], mode))
				check("mul", new(big.Float).Mul(x, y), l.mul(c[0], c[1], mode))
				if y.Sign() != 0 { // 4000 bits, cut off: what is lost is below all that is rounded
					q := new(big.Float).SetPrec(4000).SetMode(big.AwayFromZero).Quo(x, y)
					check("div", q, l.div(c[0], c[1], mode))
				}
				if x.Sign() > 0 {
					check("sqrt", bigRoot(l.open(c[0])), l.sqrt(c[0], mode))
				}
			}
		}
	}
}

// Rounded to the nearest, operations are the CPU's: zeros, infinities and NaNs as
// well.
func TestRoundingAgainstCPU(t *testing.T) {
	for _, c := range roundingCases("f32", 20000) {
		a, b, d := f32(c[0]), f32(c[1]), f32(c[2])
		for op, both := range map[string][2]uint64{
			"add":  {number32(a + b), single.add(c[0], c[1], toEven)},
			"sub":  {number32(a - b), single.sub(c[0], c[1], toEven)},
			"mul":  {number32(a * b), single.mul(c[0], c[1], toEven)},
			"div":  {number32(a / b), single.div(c[0], c[1], toEven)},
			"sqrt": {number32(float32(math.Sqrt(float64(a)))), single.sqrt(c[0], toEven)},
			"fma":  {number32(fma32(a, b, d)), single.fma(c[0], c[1], c[2], toEven)},
		} {
			require.Equal(t, both[0], both[1], "%s %x", op, c)
		}
	}
	for _, c := range roundingCases("f64", 20000) {
		a, b, d := f64(c[0]), f64(c[1]), f64(c[2])
		for op, both := range map[string][2]uint64{
			"add":  {number64(a + b), double.add(c[0], c[1], toEven)},
			"sub":  {number64(a - b), double.sub(c[0], c[1], toEven)},
			"mul":  {number64(a * b), double.mul(c[0], c[1], toEven)},
			"div":  {number64(a / b), double.div(c[0], c[1], toEven)},
			"sqrt": {number64(math.Sqrt(a)), double.sqrt(c[0], toEven)},
			"fma":  {number64(math.FMA(a, b, d)), double.fma(c[0], c[1], c[2], toEven)},
		} {
			require.Equal(t, both[0], both[1], "%s %x", op, c)
		}
	}
}

// Conversions between layouts round once.
func TestCastsAgainstBig(t *testing.T) {
	for _, to := range []*layout{half, brain, single, double, tensor, e5m2} {
		for name, from := range map[string]*layout{"f16": half, "bf16": brain, "f32": single, "f64": double} {
			for _, c := range roundingCases(name, 2000) {
				if v := c[0]; finite(from, v) {
					for _, mode := range []rounding{toEven, toZero, down, up, away} {
						require.Equal(t, bigRounded(to, bigOf(from, v), mode), cast{to: to, from: from, round: mode}.convertFloat(v))
					}
				}
			}
		}
	}
}
