package ptx

import (
	"math"
	"math/bits"
)

// Integer operands are taken from a register of 64 bits, of which the low ones
// count, and put back with the rest zero.

type unsignedInt interface{ ~uint16 | ~uint32 | ~uint64 }

type signedInt interface{ ~int16 | ~int32 | ~int64 }

// u2 is an instruction of two unsigned operands, u1 of one.
func u2[T unsignedInt](f func(a, b T) T) run {
	return func(t *thread, i *inst) { t.r[i.d] = uint64(f(T(t.r[i.a]), T(t.r[i.b]))) }
}

func u1[T unsignedInt](f func(a T) T) run {
	return func(t *thread, i *inst) { t.r[i.d] = uint64(f(T(t.r[i.a]))) }
}

// s2 is an instruction of two signed operands, kept as the unsigned type U.
func s2[T signedInt, U unsignedInt](f func(a, b T) T) run {
	return func(t *thread, i *inst) { t.r[i.d] = uint64(U(f(T(t.r[i.a]), T(t.r[i.b])))) }
}

func s1[T signedInt, U unsignedInt](f func(a T) T) run {
	return func(t *thread, i *inst) { t.r[i.d] = uint64(U(f(T(t.r[i.a])))) }
}

// alike is a table for what does not care for signs.
func alike(w, d, q run) map[typ]run {
	return map[typ]run{tu16: w, ts16: w, tu32: d, ts32: d, tu64: q, ts64: q}
}

// onBits is a table for what takes bits.
func onBits(w, d, q run) map[typ]run { return map[typ]run{tb16: w, tb32: d, tb64: q} }

// apart is a table for what does.
func apart(uw, ud, uq, sw, sd, sq run) map[typ]run {
	return map[typ]run{tu16: uw, tu32: ud, tu64: uq, ts16: sw, ts32: sd, ts64: sq}
}

func add[T unsignedInt](a, b T) T { return a + b }
func sub[T unsignedInt](a, b T) T { return a - b }
func mul[T unsignedInt](a, b T) T { return a * b }
func and[T unsignedInt](a, b T) T { return a & b }
func or[T unsignedInt](a, b T) T  { return a | b }
func xor[T unsignedInt](a, b T) T { return a ^ b }
func not[T unsignedInt](a T) T    { return ^a }
func neg[T unsignedInt](a T) T    { return -a }
func abs[T signedInt](a T) T      { return max(a, -a) }
func cnot[T unsignedInt](a T) T {
	if a == 0 {
		return 1
	}
	return 0
}

func minU[T unsignedInt](a, b T) T { return min(a, b) }
func maxU[T unsignedInt](a, b T) T { return max(a, b) }
func minS[T signedInt](a, b T) T   { return min(a, b) }
func maxS[T signedInt](a, b T) T   { return max(a, b) }

// PTX leaves the result of a division by zero open.
func divU[T unsignedInt](a, b T) T {
	if b == 0 {
		return ^T(0)
	}
	return a / b
}

func divS[T signedInt](a, b T) T {
	switch b {
	case 0:
		return -1
	case -1:
		return -a
	}
	return a / b
}

func remU[T unsignedInt](a, b T) T {
	if b == 0 {
		return a
	}
	return a % b
}

func remS[T signedInt](a, b T) T {
	switch b {
	case 0:
		return a
	case -1:
		return 0
	}
	return a % b
}

// In PTX the smaller of a number and NaN is the number, and -0 is less than +0.
func minNum(a, b float64) float64 {
	switch {
	case a != a:
		return b
	case b != b:
		return a
	}
	return math.Min(a, b)
}

func maxNum(a, b float64) float64 {
	switch {
	case a != a:
		return b
	case b != b:
		return a
	}
	return math.Max(a, b)
}

var (
	addRows = rows{
		ints: alike(u2(add[uint16]), u2(add[uint32]), u2(add[uint64])),
		f32:  func(a, b, _ float32) float32 { return a + b },
		f64:  func(a, b, _ float64) float64 { return a + b },
	}
	subRows = rows{
		ints: alike(u2(sub[uint16]), u2(sub[uint32]), u2(sub[uint64])),
		f32:  func(a, b, _ float32) float32 { return a - b },
		f64:  func(a, b, _ float64) float64 { return a - b },
	}
	mulRows = rows{
		ints: alike(u2(mul[uint16]), u2(mul[uint32]), u2(mul[uint64])), // .lo
		f32:  func(a, b, _ float32) float32 { return a * b },
		f64:  func(a, b, _ float64) float64 { return a * b },
	}
	divRows = rows{
		ints: apart(u2(divU[uint16]), u2(divU[uint32]), u2(divU[uint64]),
			s2[int16, uint16](divS), s2[int32, uint32](divS), s2[int64, uint64](divS)),
		f32: func(a, b, _ float32) float32 { return a / b },
		f64: func(a, b, _ float64) float64 { return a / b },
	}
	remRows = rows{ints: apart(u2(remU[uint16]), u2(remU[uint32]), u2(remU[uint64]),
		s2[int16, uint16](remS), s2[int32, uint32](remS), s2[int64, uint64](remS))}
	minRows = rows{
		ints: apart(u2(minU[uint16]), u2(minU[uint32]), u2(minU[uint64]),
			s2[int16, uint16](minS), s2[int32, uint32](minS), s2[int64, uint64](minS)),
		f64: func(a, b, _ float64) float64 { return minNum(a, b) },
	}
	maxRows = rows{
		ints: apart(u2(maxU[uint16]), u2(maxU[uint32]), u2(maxU[uint64]),
			s2[int16, uint16](maxS), s2[int32, uint32](maxS), s2[int64, uint64](maxS)),
		f64: func(a, b, _ float64) float64 { return maxNum(a, b) },
	}
	negRows = rows{
		ints: map[typ]run{ts16: u1(neg[uint16]), ts32: u1(neg[uint32]), ts64: u1(neg[uint64])},
		f32:  func(a, _, _ float32) float32 { return -a },
		f64:  func(a, _, _ float64) float64 { return -a },
	}
	absRows = rows{
		ints: map[typ]run{ts16: s1[int16, uint16](abs), ts32: s1[int32, uint32](abs), ts64: s1[int64, uint64](abs)},
		f32:  func(a, _, _ float32) float32 { return math.Float32frombits(math.Float32bits(a) &^ (1 << 31)) },
		f64:  func(a, _, _ float64) float64 { return math.Abs(a) },
	}
	sqrtRows = rows{
		f32: func(a, _, _ float32) float32 { return float32(math.Sqrt(float64(a))) },
		f64: func(a, _, _ float64) float64 { return math.Sqrt(a) },
	}
	rcpRows = rows{
		f32: func(a, _, _ float32) float32 { return 1 / a },
		f64: func(a, _, _ float64) float64 { return 1 / a },
	}

	andRows  = rows{ints: bitwise(and[uint16], and[uint32], and[uint64])}
	orRows   = rows{ints: bitwise(or[uint16], or[uint32], or[uint64])}
	xorRows  = rows{ints: bitwise(xor[uint16], xor[uint32], xor[uint64])}
	notRows  = rows{ints: withPredicate(onBits(u1(not[uint16]), u1(not[uint32]), u1(not[uint64])), runNotPredicate)}
	cnotRows = rows{ints: onBits(u1(cnot[uint16]), u1(cnot[uint32]), u1(cnot[uint64]))}
	brevRows = rows{ints: map[typ]run{tb32: u1(bits.Reverse32), tb64: u1(bits.Reverse64)}}

	popcRows = rows{ints: map[typ]run{
		tb32: u1(func(a uint32) uint32 { return uint32(bits.OnesCount32(a)) }),
		tb64: u1(func(a uint64) uint64 { return uint64(bits.OnesCount64(a)) }),
	}}
	clzRows = rows{ints: map[typ]run{
		tb32: u1(func(a uint32) uint32 { return uint32(bits.LeadingZeros32(a)) }),
		tb64: u1(func(a uint64) uint64 { return uint64(bits.LeadingZeros64(a)) }),
	}}

	shlRows = rows{ints: onBits(shifted(shl[uint16]), shifted(shl[uint32]), shifted(shl[uint64]))}
	shrRows = rows{ints: map[typ]run{
		tb16: shifted(shr[uint16]), tb32: shifted(shr[uint32]), tb64: shifted(shr[uint64]),
		tu16: shifted(shr[uint16]), tu32: shifted(shr[uint32]), tu64: shifted(shr[uint64]),
		ts16: shifted(sar[int16, uint16]), ts32: shifted(sar[int32, uint32]), ts64: shifted(sar[int64, uint64]),
	}}
)

// bitwise is a table for operations on bits, predicates among them.
func bitwise(w func(a, b uint16) uint16, d func(a, b uint32) uint32, q func(a, b uint64) uint64) map[typ]run {
	return withPredicate(onBits(u2(w), u2(d), u2(q)), u2(q))
}

func withPredicate(m map[typ]run, r run) map[typ]run {
	m[tpred] = r
	return m
}

func runNotPredicate(t *thread, i *inst) { t.r[i.d] = t.r[i.a] ^ 1 }

// Shifts by more than the width leave nothing but signs; Go's do the same.
func shl[T unsignedInt](a T, n uint32) T              { return a << n }
func shr[T unsignedInt](a T, n uint32) T              { return a >> n }
func sar[S signedInt, T unsignedInt](a T, n uint32) T { return T(S(a) >> n) }
func shifted[T unsignedInt](f func(a T, n uint32) T) run {
	return func(t *thread, i *inst) { t.r[i.d] = uint64(f(T(t.r[i.a]), uint32(t.r[i.b]))) }
}

// shift builds d = f(a, n); n is always 32 bits wide.
func shift(r rows) build { return shaped(r, func(t typ) []typ { return []typ{t, t, tu32} }) }

// count builds d = f(a); d is always 32 bits wide.
func count(r rows) build { return shaped(r, func(t typ) []typ { return []typ{tu32, t} }) }

// multiply builds mul and mad: .lo, .hi and .wide of integers, or that of floats, where mad is fused.
func multiply(b *builder, o *opcode) {
	t := o.typ(0)
	result, adds := t, o.name == "mad"
	var f run
	switch {
	case t.kind == float && adds:
		fused(b, o)
		return
	case t.kind == float, o.take("lo"):
		f, _ = o.form(mulRows)
	case o.take("wide"):
		f, result = row(o, wideRows, t), typ{t.kind, 2 * t.size}
	case o.take("hi"):
		f = row(o, highRows, t)
		if adds && t == ts32 && o.take("sat") {
			b.emitTyped(plusClamped(f), t, t, t, t)
			return
		}
	default:
		panic(o.refuse("without .lo, .hi or .wide"))
	}
	if adds {
		b.emitTyped(plus(f, result), result, t, t, result)
		return
	}
	b.emitTyped(f, result, t, t)
}

var wideRows = map[typ]run{
	tu16: func(t *thread, i *inst) { t.r[i.d] = uint64(uint32(uint16(t.r[i.a])) * uint32(uint16(t.r[i.b]))) },
	ts16: func(t *thread, i *inst) { t.r[i.d] = uint64(uint32(int32(int16(t.r[i.a])) * int32(int16(t.r[i.b])))) },
	tu32: func(t *thread, i *inst) { t.r[i.d] = uint64(uint32(t.r[i.a])) * uint64(uint32(t.r[i.b])) },
	ts32: func(t *thread, i *inst) { t.r[i.d] = uint64(int64(int32(t.r[i.a])) * int64(int32(t.r[i.b]))) },
}

var highRows = map[typ]run{
	tu16: u2(func(a, b uint16) uint16 { return uint16(uint32(a) * uint32(b) >> 16) }),
	ts16: s2[int16, uint16](func(a, b int16) int16 { return int16(int32(a) * int32(b) >> 16) }),
	tu32: u2(func(a, b uint32) uint32 { return uint32(uint64(a) * uint64(b) >> 32) }),
	ts32: s2[int32, uint32](func(a, b int32) int32 { return int32(int64(a) * int64(b) >> 32) }),
	tu64: u2(func(a, b uint64) uint64 { h, _ := bits.Mul64(a, b); return h }),
	ts64: s2[int64, uint64](mulHigh64),
}

func mulHigh64(a, b int64) int64 {
	h, _ := bits.Mul64(uint64(a), uint64(b))
	if a < 0 {
		h -= uint64(b)
	}
	if b < 0 {
		h -= uint64(a)
	}
	return int64(h)
}

// plus adds c to what f gives.
func plus(f run, t typ) run {
	mask := t.mask()
	return func(th *thread, i *inst) {
		c := th.r[i.c] // d may be the same register
		f(th, i)
		th.r[i.d] = (th.r[i.d] + c) & mask
	}
}

// plusClamped is plus for mad.hi.sat.s32.
func plusClamped(f run) run {
	return func(th *thread, i *inst) {
		c := th.r[i.c] // d may be the same register
		f(th, i)
		th.r[i.d] = clamp32(int64(int32(th.r[i.d])) + int64(int32(c)))
	}
}

// fused builds fma, which rounds once.
func fused(b *builder, o *opcode) {
	f, t := o.form(rows{f32: fma32, f64: math.FMA})
	if t == tf64 {
		f = runFused64
	}
	b.emitTyped(f, t, t, t, t)
}

// A NaN in b takes precedence over one in a.
func runFused64(t *thread, i *inst) {
	a, b, c := t.r[i.a], t.r[i.b], t.r[i.c]
	t.r[i.d] = number64(math.FMA(f64(a), f64(b), f64(c)), b, a, c)
}

// fma32 is a b + c rounded once. The product is exact as a double; the sum is
// rounded to odd, so that rounding it again does no harm.
func fma32(a, b, c float32) float32 {
	p, z := float64(float64(a)*float64(b)), float64(c) // converted, or arm64 fuses
	s := float64(p + z)
	if math.IsInf(s, 0) || s != s {
		return float32(s)
	}
	part := float64(s - p)
	if lost := float64(p-float64(s-part)) + float64(z-part); lost != 0 && math.Float64bits(s)&1 == 0 {
		if (lost > 0) == (s > 0) {
			s = math.Float64frombits(math.Float64bits(s) + 1)
		} else {
			s = math.Float64frombits(math.Float64bits(s) - 1)
		}
	}
	return float32(s)
}

// saturating builds add.sat.s32 and sub.sat.s32.
func saturating(b *builder, o *opcode) {
	var f run
	switch t := o.typ(0); {
	case t == ts32 && o.name == "add":
		f = func(t *thread, i *inst) { t.r[i.d] = clamp32(int64(int32(t.r[i.a])) + int64(int32(t.r[i.b]))) }
	case t == ts32 && o.name == "sub":
		f = func(t *thread, i *inst) { t.r[i.d] = clamp32(int64(int32(t.r[i.a])) - int64(int32(t.r[i.b]))) }
	default:
		panic(o.refuse(".sat"))
	}
	b.emitTyped(f, ts32, ts32, ts32)
}
