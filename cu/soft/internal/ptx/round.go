package ptx

import "math/bits"

// This file does with integers what the CPU cannot do: arithmetic that is rounded
// towards zero, down or up, and all arithmetic of types of 16 bits and less. A
// result is first computed exactly, or so far that its last bit says whether there
// was more, and then rounded once.

// A rounding is how a result is rounded.
type rounding uint8

const (
	toEven rounding = iota // to the nearest, of two to the even one
	toZero
	down
	up
	away // to the nearest, of two to the larger one
)

var roundingNames = map[string]rounding{"rn": toEven, "rz": toZero, "rm": down, "rp": up}

// A floatFormat is how a float lies in its bits: sign, exponent, fraction.
type floatFormat struct {
	size     int // bits
	fraction int
	bias     int
	nan      uint64 // that arithmetic gives
	largest  uint64 // finite number
	infinite bool   // there are infinities
	flushes  bool   // what is subnormal, had the exponent no end, is rounded to zero
}

// newFloatFormat returns one of IEEE 754.
func newFloatFormat(size, fraction int, nan uint64) *floatFormat {
	inf := uint64(1)<<(size-1) - uint64(1)<<fraction
	return &floatFormat{size, fraction, 1<<(size-2-fraction) - 1, nan, inf - 1, true, false}
}

var (
	half   = newFloatFormat(16, 10, 0x7fff)
	brain  = newFloatFormat(16, 7, 0x7fff)
	single = newFloatFormat(32, 23, nan32)
	double = newFloatFormat(64, 52, nan64)
	tensor = newFloatFormat(19, 10, 0x3ffff) // tf32 without its low zeros
	e5m2   = newFloatFormat(8, 2, 0x7f)
	e4m3   = &floatFormat{8, 3, 7, 0x7f, 0x7e, false, false}
)

// flushing are the formats for operations that have .ftz.
var flushing = map[*floatFormat]*floatFormat{half: half.flushing(), single: single.flushing()}

func (l *floatFormat) flushing() *floatFormat {
	zeros := *l
	zeros.flushes = true
	return &zeros
}

func (l *floatFormat) sign() uint64 { return 1 << (l.size - 1) }

// inf returns the infinity, or what stands where it would.
func (l *floatFormat) inf() uint64 {
	if !l.infinite {
		return l.nan
	}
	return l.largest + 1
}

func (l *floatFormat) isNaN(v uint64) bool {
	return v&^l.sign() > l.largest && v&^l.sign() != l.inf() || !l.infinite && v&^l.sign() == l.nan
}
func (l *floatFormat) isInf(v uint64) bool { return l.infinite && v&^l.sign() == l.inf() }

func (l *floatFormat) isSubnormal(v uint64) bool {
	v &^= l.sign()
	return v != 0 && v < 1<<l.fraction
}

// flush takes a subnormal number for a zero of its sign.
func (l *floatFormat) flush(v uint64) uint64 {
	if l.isSubnormal(v) {
		return v & l.sign()
	}
	return v
}

// An exact is a finite number, mant × 2^exp. The lowest bit of mant may be sticky: set if any bit below it was lost.
type exact struct {
	neg  bool
	mant uint64
	exp  int
}

// open returns the value of a finite number.
func (l *floatFormat) open(v uint64) exact {
	mant, exp := v&(1<<l.fraction-1), int(v&^l.sign()>>l.fraction)
	if exp > 0 {
		mant |= 1 << l.fraction
	} else {
		exp = 1
	}
	return exact{v&l.sign() != 0, mant, exp - l.bias - l.fraction}
}

// round returns the bits of a number.
func (l *floatFormat) round(e exact, r rounding) uint64 {
	sign := uint64(0)
	if e.neg {
		sign = l.sign()
	}
	if e.mant == 0 {
		return sign
	}
	first := e.exp + bits.Len64(e.mant) - 1 // the exponent, as if not subnormal
	if !l.flushes {
		first = max(first, 1-l.bias)
	}
	drop := first - l.fraction - e.exp
	m, over := e.mant, false
	if drop <= 0 {
		m <<= -drop
	} else {
		w := wide{hi: m}.lowered(drop) // the binary point is between its halves
		m, over = w.hi, roundsUp(w.hi, w.lo, e.neg, r)
	}
	v := int64(first+l.bias-1)<<l.fraction + int64(m) // m has the leading bit, which is one more
	if over {
		v++
	}
	switch {
	case l.flushes && v < 1<<l.fraction:
		return sign
	case uint64(v) <= l.largest:
		return sign | uint64(v)
	}
	return sign | l.overflow(e.neg, r)
}

// overflow returns what a number becomes that is too large.
func (l *floatFormat) overflow(neg bool, r rounding) uint64 {
	if r == toZero || r == up && neg || r == down && !neg {
		return l.largest
	}
	return l.inf()
}

// roundsUp reports whether a magnitude becomes the next larger one, of what is
// below its last bit.
func roundsUp(m, below uint64, neg bool, r rounding) bool {
	const middle = 1 << 63
	switch r {
	case toEven:
		return below > middle || below == middle && m&1 != 0
	case away:
		return below >= middle
	case down:
		return neg && below != 0
	case up:
		return !neg && below != 0
	}
	return false
}

// A wide is a number of 128 bits, mant × 2^exp.
type wide struct {
	neg    bool
	hi, lo uint64
	exp    int
}

// times is exact.
func times(a, b exact) wide {
	hi, lo := bits.Mul64(a.mant, b.mant)
	return wide{a.neg != b.neg, hi, lo, a.exp + b.exp}
}

// raised shifts a number so that its highest bit is bit 126.
func (w wide) raised() wide {
	n := bits.LeadingZeros64(w.hi)
	if w.hi == 0 {
		n = 64 + bits.LeadingZeros64(w.lo)
	}
	if n == 0 {
		return w.lowered(1)
	}
	n--
	if n >= 64 {
		w.hi, w.lo, w.exp = w.lo, 0, w.exp-64
		n -= 64
	}
	return wide{w.neg, w.hi<<n | w.lo>>(64-n), w.lo << n, w.exp - n}
}

// lowered shifts n bits out, all of which the lowest bit stands for then.
func (w wide) lowered(n int) wide {
	w.exp += n
	lost := uint64(0)
	for ; n >= 64; n -= 64 {
		lost, w.hi, w.lo = lost|w.lo, 0, w.hi
	}
	lost |= w.lo << (64 - n)
	w.hi, w.lo = w.hi>>n, w.hi<<(64-n)|w.lo>>n|boolBits(lost != 0)
	return w
}

// zero reports whether the number is.
func (w wide) zero() bool { return w.hi|w.lo == 0 }

// sum adds numbers that are not zero.
func sum(a, b wide, r rounding) wide {
	a, b = a.raised(), b.raised()
	if a.exp < b.exp || a.exp == b.exp && (a.hi < b.hi || a.hi == b.hi && a.lo < b.lo) {
		a, b = b, a
	}
	b = b.lowered(a.exp - b.exp)
	var carry uint64
	if a.neg == b.neg {
		a.lo, carry = bits.Add64(a.lo, b.lo, 0)
		a.hi, _ = bits.Add64(a.hi, b.hi, carry)
		return a
	}
	a.lo, carry = bits.Sub64(a.lo, b.lo, 0)
	a.hi, _ = bits.Sub64(a.hi, b.hi, carry)
	if a.zero() {
		a.neg = r == down
	}
	return a
}

// narrow leaves 64 bits.
func (w wide) narrow() exact {
	if w.hi == 0 {
		return exact{w.neg, w.lo, w.exp}
	}
	w = w.raised().lowered(64)
	return exact{w.neg, w.lo, w.exp}
}

// fma returns a b + c, rounded once.
func (l *floatFormat) fma(a, b, c uint64, r rounding) uint64 {
	sign := (a ^ b) & l.sign()
	switch {
	case l.isNaN(a) || l.isNaN(b) || l.isNaN(c):
		return l.nan
	case l.isInf(a) || l.isInf(b):
		zero := a&^l.sign() == 0 || b&^l.sign() == 0
		if zero || l.isInf(c) && c&l.sign() != sign {
			return l.nan
		}
		return sign | l.inf()
	case l.isInf(c):
		return c
	}
	p, z := times(l.open(a), l.open(b)), l.open(c)
	add := wide{z.neg, 0, z.mant, z.exp}
	switch {
	case p.zero() && add.zero():
		if p.neg != add.neg {
			p.neg = r == down
		}
	case p.zero():
		p = add
	case !add.zero():
		p = sum(p, add, r)
	}
	return l.round(p.narrow(), r)
}

func (l *floatFormat) one() uint64 { return uint64(l.bias) << l.fraction }

func (l *floatFormat) add(a, b uint64, r rounding) uint64 { return l.fma(a, l.one(), b, r) }

func (l *floatFormat) sub(a, b uint64, r rounding) uint64 {
	return l.fma(a, l.one(), b^l.sign(), r)
}

// mul adds a zero of the product's sign, which changes nothing.
func (l *floatFormat) mul(a, b uint64, r rounding) uint64 {
	return l.fma(a, b, (a^b)&l.sign(), r)
}

func (l *floatFormat) div(a, b uint64, r rounding) uint64 {
	sign := (a ^ b) & l.sign()
	zero, byZero := a&^l.sign() == 0, b&^l.sign() == 0
	switch {
	case l.isNaN(a) || l.isNaN(b) || zero && byZero || l.isInf(a) && l.isInf(b):
		return l.nan
	case l.isInf(a) || byZero:
		return sign | l.inf()
	case zero || l.isInf(b):
		return sign
	}
	x, y := l.open(a), l.open(b)
	dx, dy := bits.LeadingZeros64(x.mant), bits.LeadingZeros64(y.mant)
	// The dividend is less than the divisor, as Div64 wants, and has 128 bits.
	q, rest := bits.Div64(x.mant<<dx>>1, 0, y.mant<<dy)
	e := exact{sign != 0, q | boolBits(rest != 0), x.exp - dx + 1 - (y.exp - dy) - 64}
	return l.round(e, r)
}

func (l *floatFormat) sqrt(a uint64, r rounding) uint64 {
	switch {
	case l.isNaN(a):
		return l.nan
	case a&^l.sign() == 0:
		return a
	case a&l.sign() != 0:
		return l.nan
	case l.isInf(a):
		return a
	}
	x := l.open(a)
	n := bits.LeadingZeros64(x.mant)
	if (x.exp-n)%2 != 0 {
		n-- // the exponent has to be even
	}
	root, rest := sqrt128(x.mant << n)
	return l.round(exact{false, root | boolBits(rest), (x.exp - n - 64) / 2}, r)
}

// sqrt128 returns the root of v × 2^64, and whether there is a rest.
func sqrt128(v uint64) (root uint64, rest bool) {
	for bit := uint64(1) << 63; bit != 0; bit >>= 1 {
		try := root | bit
		if hi, lo := bits.Mul64(try, try); hi < v || hi == v && lo == 0 {
			root = try
		}
	}
	hi, lo := bits.Mul64(root, root)
	return root, hi != v || lo != 0
}
