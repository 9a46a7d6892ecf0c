package ptx

import (
	"math"
	"math/bits"
)

// Integer operands are taken from a register of 64 bits, of which the low ones
// count, and put back with the rest zero.

var (
	bitTypes    = []typ{tb16, tb32, tb64}
	signedTypes = []typ{ts16, ts32, ts64}
	intTypes    = []typ{tu16, tu32, tu64, ts16, ts32, ts64}
)

// byMask returns a table for an operation whose low bits depend on those of the operands
// alone. The run is made for each type: to call another function would take as long as
// the operation.
func byMask(types []typ, f func(mask uint64) run) map[typ]run {
	table := map[typ]run{}
	for _, t := range types {
		table[t] = f(t.mask())
	}
	return table
}

// onInts returns a table for an operation on integers, without signs and with them.
func onInts(u func(a, b uint64) uint64, s func(a, b int64) int64, types ...typ) map[typ]run {
	table := map[typ]run{}
	for _, t := range types {
		mask, up := t.mask(), 64-8*t.size
		table[t] = func(th *thread, i *inst) { th.r[i.d] = u(th.r[i.a]&mask, th.r[i.b]&mask) & mask }
		if t.kind == signed {
			table[t] = func(th *thread, i *inst) {
				th.r[i.d] = uint64(s(int64(th.r[i.a]<<up)>>up, int64(th.r[i.b]<<up)>>up)) & mask
			}
		}
	}
	return table
}

func smaller[T int64 | uint64](a, b T) T { return min(a, b) }
func larger[T int64 | uint64](a, b T) T  { return max(a, b) }

// PTX leaves the result of a division by zero open.
func quotient[T int64 | uint64](a, b T) T {
	if b == 0 {
		return ^b
	}
	return a / b
}

func remainder[T int64 | uint64](a, b T) T {
	if b == 0 {
		return a
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
		ints: byMask(intTypes, func(mask uint64) run {
			return func(t *thread, i *inst) { t.r[i.d] = (t.r[i.a] + t.r[i.b]) & mask }
		}),
		f32: func(a, b, _ float32) float32 { return a + b },
		f64: func(a, b, _ float64) float64 { return a + b },
	}
	subRows = rows{
		ints: byMask(intTypes, func(mask uint64) run {
			return func(t *thread, i *inst) { t.r[i.d] = (t.r[i.a] - t.r[i.b]) & mask }
		}),
		f32: func(a, b, _ float32) float32 { return a - b },
		f64: func(a, b, _ float64) float64 { return a - b },
	}
	mulRows = rows{
		ints: byMask(intTypes, func(mask uint64) run {
			return func(t *thread, i *inst) { t.r[i.d] = (t.r[i.a] * t.r[i.b]) & mask }
		}), // .lo
		f32: func(a, b, _ float32) float32 { return a * b },
		f64: func(a, b, _ float64) float64 { return a * b },
	}
	divRows = rows{
		ints: onInts(quotient[uint64], quotient[int64], intTypes...),
		f32:  func(a, b, _ float32) float32 { return a / b },
		f64:  func(a, b, _ float64) float64 { return a / b },
	}
	remRows = rows{ints: onInts(remainder[uint64], remainder[int64], intTypes...)}
	minRows = rows{
		ints: onInts(smaller[uint64], smaller[int64], intTypes...),
		f64:  func(a, b, _ float64) float64 { return minNum(a, b) },
	}
	maxRows = rows{
		ints: onInts(larger[uint64], larger[int64], intTypes...),
		f64:  func(a, b, _ float64) float64 { return maxNum(a, b) },
	}
	negRows = rows{
		ints: byMask(signedTypes, func(mask uint64) run {
			return func(t *thread, i *inst) { t.r[i.d] = -t.r[i.a] & mask }
		}),
		f32: func(a, _, _ float32) float32 { return -a },
		f64: func(a, _, _ float64) float64 { return -a },
	}
	absRows = rows{
		ints: onInts(nil, func(a, _ int64) int64 { return max(a, -a) }, signedTypes...),
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

	andRows = onBits(func(t *thread, i *inst) { t.r[i.d] = t.r[i.a] & t.r[i.b] })
	orRows  = onBits(func(t *thread, i *inst) { t.r[i.d] = t.r[i.a] | t.r[i.b] })
	xorRows = onBits(func(t *thread, i *inst) { t.r[i.d] = t.r[i.a] ^ t.r[i.b] })
	notRows = rows{ints: byMask(append(bitTypes, tpred), func(mask uint64) run {
		return func(t *thread, i *inst) { t.r[i.d] = ^t.r[i.a] & mask }
	})}
	cnotRows = rows{ints: onInts(func(a, _ uint64) uint64 { return boolBits(a == 0) }, nil, bitTypes...)}
	popcRows = rows{ints: onInts(func(a, _ uint64) uint64 { return uint64(bits.OnesCount64(a)) }, nil, tb32, tb64)}
	clzRows  = byWord(
		func(a uint32) uint32 { return uint32(bits.LeadingZeros32(a)) },
		func(a uint64) uint64 { return uint64(bits.LeadingZeros64(a)) })
	brevRows = byWord(bits.Reverse32, bits.Reverse64)

	shlRows = rows{ints: byMask(bitTypes, func(mask uint64) run {
		return func(t *thread, i *inst) { t.r[i.d] = t.r[i.a] << uint32(t.r[i.b]) & mask }
	})}
	shrRows = rows{ints: shiftsRight(append(intTypes, bitTypes...))}
)

// onBits returns a table for an operation on bits that makes none of zeros, predicates among
// them.
func onBits(r run) rows {
	return rows{ints: map[typ]run{tb16: r, tb32: r, tb64: r, tpred: r}}
}

// byWord returns a table for words of 32 and of 64 bits.
func byWord(f func(uint32) uint32, g func(uint64) uint64) rows {
	return rows{ints: map[typ]run{
		tb32: func(t *thread, i *inst) { t.r[i.d] = uint64(f(uint32(t.r[i.a]))) },
		tb64: func(t *thread, i *inst) { t.r[i.d] = g(t.r[i.a]) },
	}}
}

// Shifts by more than the width leave nothing but signs; Go's do the same.
func shiftsRight(types []typ) map[typ]run {
	table := map[typ]run{}
	for _, t := range types {
		mask, up := t.mask(), 64-8*t.size
		table[t] = func(th *thread, i *inst) { th.r[i.d] = th.r[i.a] & mask >> uint32(th.r[i.b]) }
		if t.kind == signed {
			table[t] = func(th *thread, i *inst) {
				th.r[i.d] = uint64(int64(th.r[i.a]<<up)>>up>>uint32(th.r[i.b])) & mask
			}
		}
	}
	return table
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
	tu16: pure(func(a, b, _ uint64) uint64 { return a & 0xffff * (b & 0xffff) >> 16 }).run(),
	ts16: pure(func(a, b, _ uint64) uint64 { return uint64(uint16(int32(int16(a)) * int32(int16(b)) >> 16)) }).run(),
	tu32: pure(func(a, b, _ uint64) uint64 { return a & 0xffffffff * (b & 0xffffffff) >> 32 }).run(),
	ts32: pure(func(a, b, _ uint64) uint64 { return uint64(int64(int32(a))*int64(int32(b))) >> 32 }).run(),
	tu64: pure(func(a, b, _ uint64) uint64 { h, _ := bits.Mul64(a, b); return h }).run(),
	ts64: pure(mulHigh64).run(),
}

func mulHigh64(a, b, _ uint64) uint64 {
	h, _ := bits.Mul64(a, b)
	if int64(a) < 0 {
		h -= b
	}
	if int64(b) < 0 {
		h -= a
	}
	return h
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

// fused builds fma, which rounds once. A NaN in b takes precedence over one in a.
func fused(b *builder, o *opcode) {
	f, t := o.form(rows{f32: fma32, f64: math.FMA})
	if t == tf64 {
		f = func(t *thread, i *inst) {
			a, b, c := t.r[i.a], t.r[i.b], t.r[i.c]
			t.r[i.d] = number64(math.FMA(f64(a), f64(b), f64(c)), b, a, c)
		}
	}
	b.emitTyped(f, t, t, t, t)
}

// fma32 returns a b + c rounded once. The product is exact as a double; the sum is
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
	o.refuseIf(o.typ(0) != ts32 || o.name != "add" && o.name != "sub", ".sat")
	sign := int64(1)
	if o.name == "sub" {
		sign = -1
	}
	b.emitTyped(func(t *thread, i *inst) {
		t.r[i.d] = clamp32(int64(int32(t.r[i.a])) + sign*int64(int32(t.r[i.b])))
	}, ts32, ts32, ts32)
}
