package ptx

import (
	"math"
	"math/bits"
)

// sized builds an instruction whose runs are found by its first type. types gives
// those of the operands, of that type.
func sized(r map[typ]pure, types func(t typ) []typ) build {
	return func(b *builder, o *opcode) {
		t := o.typ(0)
		b.emitTyped(row(o, r, t).run(), types(t)...)
	}
}

// each returns a table for an operation that depends on the type.
func each(f func(t typ) pure, types ...typ) map[typ]pure {
	table := map[typ]pure{}
	for _, t := range types {
		table[t] = f(t)
	}
	return table
}

// A limit bounds a number of bits: to 32, or to its low five bits.
type limit func(n uint64) uint64

// clamped builds an instruction of 32 bits that has .clamp or .wrap.
func clamped(f func(t typ, l limit) pure, operands func(t typ) []typ, types ...typ) build {
	return func(b *builder, o *opcode) {
		l := limit(func(n uint64) uint64 { return min(n&0xffffffff, 32) })
		if !o.take("clamp") {
			o.refuseIf(!o.take("wrap"), "without .clamp or .wrap")
			l = func(n uint64) uint64 { return n & 31 }
		}
		t := o.only(types...)
		b.emitTyped(f(t, l).run(), operands(t)...)
	}
}

// signed64 extends a number of a type's size.
func (t typ) signed64(v uint64) int64 {
	shift := 64 - 8*t.size
	return int64(v<<shift) >> shift
}

var bfeRows = each(extractField, tu32, ts32, tu64, ts64)

// field returns the place and the length of a field, which can be past the end. 32
// bits take the low byte of each; 64 do not, whatever the ISA says.
func (t typ) field(at, n uint64) (uint64, uint64) {
	if t.size == 4 {
		return at & 0xff, n & 0xff
	}
	return min(at, 0xff), min(n, 0xff)
}

// extractField is bfe: c bits from b on. Bits past the end are zeros, or the
// top bit if the type is signed.
func extractField(t typ) pure {
	width := uint64(8 * t.size)
	return func(a, b, c uint64) uint64 {
		at, n := t.field(b, c)
		if n == 0 {
			return 0
		}
		if t.kind == unsigned {
			return a & t.mask() >> at & (1<<n - 1)
		}
		v := t.signed64(a) >> at // signs come in from above
		if n < width {
			v = v << (64 - n) >> (64 - n)
		}
		if top := at + n - 1; top >= width { // the sign is that of a
			v = t.signed64(a) >> min(at, 63)
		}
		return uint64(v) & t.mask()
	}
}

// insertField builds bfi: d bits of a are put into b from bit c on.
func insertField(b *builder, o *opcode) {
	t := o.only(tb32, tb64)
	b.emitTyped(func(th *thread, i *inst) {
		at, n := t.field(th.r[i.c], th.r[i.vec[0]])
		field := (uint64(1)<<n - 1) << at & t.mask()
		th.r[i.d] = th.r[i.b]&^field | th.r[i.a]<<at&field
	}, t, t, t, tu32, tu32)
}

// findBit builds bfind: the highest bit that is not a copy of the sign.
func findBit(b *builder, o *opcode) {
	t := o.only(tu32, ts32, tu64, ts64)
	shift := o.take("shiftamt")
	b.emitTyped(pure(func(a, _, _ uint64) uint64 {
		if t.kind == signed && t.signed64(a) < 0 {
			a = ^a & t.mask()
		}
		n := bits.Len64(a) - 1
		if n >= 0 && shift {
			n = 8*t.size - 1 - n
		}
		return uint64(uint32(n))
	}).run(), tu32, t)
}

// findNth is fns: the c-th bit that is set in a, from bit b up; down if c is
// negative.
func findNth(mask, from, offset uint64) uint64 {
	const none = 0xffffffff
	n := int32(offset)
	at := int(uint32(from))
	switch {
	case n == math.MinInt32:
		return 0
	case at > 31:
		return none
	}
	step := 1
	switch {
	case n == 0:
		if mask>>at&1 != 0 {
			return uint64(at)
		}
		return none
	case n < 0:
		step = -1
	}
	for ; at >= 0 && at < 32; at += step {
		if mask>>at&1 == 0 {
			continue
		}
		if n -= int32(step); n == 0 {
			return uint64(at)
		}
	}
	return none
}

var fnsRows = map[typ]pure{tb32: findNth}

func fnsTypes(typ) []typ { return []typ{tb32, tb32, tb32, ts32} }

// extendBits is szext: it extends the sign of the low b bits of a, or clears what is
// above them.
func extendBits(t typ, l limit) pure {
	return func(a, b, _ uint64) uint64 {
		n := l(b)
		if n == 0 {
			return 0
		}
		if t.kind == unsigned {
			return a & (1<<n - 1) & t.mask()
		}
		return uint64(int64(a)<<(64-n)>>(64-n)) & t.mask()
	}
}

// bitMask is bmsk: b bits that are set, from bit a up.
func bitMask(_ typ, l limit) pure {
	return func(a, b, _ uint64) uint64 { return (1<<l(b) - 1) << l(a) & 0xffffffff }
}

func extendTypes(t typ) []typ { return []typ{t, t, tu32} }

// funnel builds shf: the upper or lower word of b and a, shifted.
func funnel(b *builder, o *opcode) {
	left := o.take("l")
	o.refuseIf(!left && !o.take("r"), "without .l or .r")
	clamped(func(_ typ, l limit) pure {
		return func(a, b, c uint64) uint64 {
			v, n := b<<32|a, l(c)
			if left {
				return v << n >> 32
			}
			return v >> n & 0xffffffff
		}
	}, func(t typ) []typ { return []typ{t, t, t, tu32} }, tb32)(b, o)
}

// permute builds prmt: bytes of b and a, picked by c.
func permute(b *builder, o *opcode) {
	pick, ok := oneOf(o, permuteModes)
	if !ok {
		pick = pickAny
	}
	o.only(tb32)
	b.emitTyped(pure(func(a, b, c uint64) uint64 {
		v, r := b<<32|a, uint64(0)
		for k := range uint64(4) {
			r |= pick(v, c, k) << (8 * k)
		}
		return r
	}).run(), tb32, tb32, tb32, tb32)
}

func byteAt(v, n uint64) uint64 { return v >> (8 * (n & 7)) & 0xff }

// pickAny picks by four bits for each byte, of which the highest copies the sign.
func pickAny(v, c, k uint64) uint64 {
	n := c >> (4 * k)
	b := byteAt(v, n)
	if n&8 != 0 {
		return uint64(int8(b)>>7) & 0xff
	}
	return b
}

var permuteModes = map[string]func(v, c, k uint64) uint64{
	"f4e":  func(v, c, k uint64) uint64 { return byteAt(v, c&3+k) },
	"b4e":  func(v, c, k uint64) uint64 { return byteAt(v, c&3-k) },
	"rc8":  func(v, c, k uint64) uint64 { return byteAt(v, c&3) },
	"ecl":  func(v, c, k uint64) uint64 { return byteAt(v, max(c&3, k)) },
	"ecr":  func(v, c, k uint64) uint64 { return byteAt(v, min(c&3, k)) },
	"rc16": func(v, c, k uint64) uint64 { return byteAt(v, c&1*2+k&1) },
}

// lookUp builds lop3: any function of three bits, which a table of eight says.
func lookUp(b *builder, o *opcode) {
	o.only(tb32)
	args := b.arguments(5)
	o.refuseIf(args[4].what != isInteger || args[4].bits > 255, "a table that is no number up to 255")
	table := args[4].bits
	f := pure(func(a, b, c uint64) uint64 {
		r := uint64(0)
		for n := range uint64(8) {
			if table>>n&1 != 0 {
				r |= pickBits(a, n>>2) & pickBits(b, n>>1) & pickBits(c, n)
			}
		}
		return r & 0xffffffff
	})
	b.emitOperands(f.run(), args[:4], tb32, tb32, tb32, tb32)
}

// pickBits returns the bits that are as the lowest of want.
func pickBits(v, want uint64) uint64 {
	if want&1 != 0 {
		return v
	}
	return ^v
}

// chooseBySign builds slct: a if c is not negative, else b.
func chooseBySign(b *builder, o *opcode) {
	t := o.typ(0)
	by := o.typ(1)
	o.refuseIf(t.kind > float || t.size == 1 || t == tf16 || by != ts32 && by != tf32, "not with .%s.%s", t, by)
	flushes := by == tf32 && o.take("ftz")
	b.emitTyped(pure(func(a, b, c uint64) uint64 {
		yes := int32(c) >= 0
		if by == tf32 {
			v := f32(c)
			if flushes {
				v = flush(v)
			}
			yes = v >= 0
		}
		return pick(yes, a, b)
	}).run(), t, t, t, by)
}

// multiply24 builds mul24 and mad24, of the low 24 bits.
func multiply24(b *builder, o *opcode) {
	t := o.typ(0)
	low := o.take("lo")
	o.refuseIf(t != tu32 && t != ts32 || !low && !o.take("hi"), "not with .%s", t)
	mul := func(a, b uint64) int64 {
		if t == ts32 {
			return int64(int32(a)<<8>>8) * int64(int32(b)<<8>>8)
		}
		return int64(a & 0xffffff * (b & 0xffffff))
	}
	if !low {
		whole := mul
		mul = func(a, b uint64) int64 { return whole(a, b) >> 16 }
	}
	if o.name == "mul24" {
		b.emitTyped(pure(func(a, b, _ uint64) uint64 { return uint64(uint32(mul(a, b))) }).run(), t, t, t)
		return
	}
	sat := t == ts32 && !low && o.take("sat")
	b.emitTyped(pure(func(a, b, c uint64) uint64 {
		if sat {
			return clamp32(int64(int32(mul(a, b))) + int64(int32(c)))
		}
		return uint64(uint32(mul(a, b)) + uint32(c))
	}).run(), t, t, t, t)
}

// clamp32 returns the signed number of 32 bits that is nearest.
func clamp32(v int64) uint64 {
	return uint64(uint32(max(-1<<31, min(1<<31-1, v))))
}

// difference is sad: c and how far a and b are apart.
func difference(t typ) pure {
	return func(a, b, c uint64) uint64 {
		less := a < b
		if t.kind == signed {
			less = t.signed64(a) < t.signed64(b)
		}
		if less {
			a, b = b, a
		}
		return (c + a - b) & t.mask()
	}
}

var sadRows = each(difference, intTypes...)

func alikeFour(t typ) []typ { return []typ{t, t, t, t} }

func fieldTypes(t typ) []typ { return []typ{t, t, tu32, tu32} }

// dot builds dp4a and dp2a: products of parts, added to c.
func dot(b *builder, o *opcode) {
	ta := o.typ(0)
	tb := o.typ(1)
	o.refuseIf(ta != tu32 && ta != ts32 || tb != tu32 && tb != ts32, "not with .%s.%s", ta, tb)
	parts, size, from := uint64(4), 1, uint64(0)
	if o.name == "dp2a" {
		parts, size = 2, 2
		if hi := o.take("hi"); !hi && !o.take("lo") {
			panic(o.refuse("without .lo or .hi"))
		} else if hi {
			from = 2
		}
	}
	pa, pb := typ{ta.kind, size}, typ{tb.kind, 1}
	tc := ts32
	if ta == tu32 && tb == tu32 {
		tc = tu32
	}
	b.emitTyped(pure(func(a, b, c uint64) uint64 {
		for k := range parts {
			c += uint64(pa.number(a>>(8*uint64(size)*k)) * pb.number(b>>(8*(k+from))))
		}
		return c & 0xffffffff
	}).run(), tc, ta, tb, tc)
}

// number returns the value of an integer of up to 32 bits, from the low bits of v.
func (t typ) number(v uint64) int64 {
	if t.kind == signed {
		return t.signed64(v)
	}
	return int64(v & t.mask())
}
