package ptx

// takeCast takes the modifiers of a conversion to a small float.
func (o *opcode) takeCast(to, from *floatFormat) (c cast) {
	c = cast{to: to, from: from}
	var ok bool
	c.round, ok = oneOf(o, roundingNames)
	o.refuseIf(!ok, "without a rounding")
	c.relu, c.finite = o.take("relu"), o.take("satfinite")
	return c
}

// convertPacked builds conversions of two floats at once and those of tf32.
func convertPacked(other build) build {
	return func(b *builder, o *opcode) {
		to := o.typ(0)
		from := o.typ(1)
		switch {
		case o.take("pack"):
			b.packIntegers(o, to, from)
		case to == ttf32 && from == tf32:
			b.convertTensor(o)
		case (to == tf16x2 || to == tbfx2) && from == tf32:
			b.convertTwo(o, to, 16)
		case eighths[to] != nil && from == tf32:
			b.convertTwo(o, to, 8)
		case eighths[to] != nil && from == tf16x2:
			b.convertHalves(o, eighths[to], half, to, from)
		case to == tf16x2 && eighths[from] != nil:
			b.convertHalves(o, half, eighths[from], to, from)
		default:
			other(b, o)
		}
	}
}

// eighths are the formats of pairs of 8 bits.
var eighths = map[typ]*floatFormat{te4m3: e4m3, te5m2: e5m2}

// convertTwo emits a conversion of two operands, the first to the upper half.
func (b *builder) convertTwo(o *opcode, to typ, bits int) {
	l := to.format()
	if bits == 8 {
		l = eighths[to]
	}
	c := o.takeCast(l, single)
	o.refuseIf(c.round != toEven && (c.round != toZero || bits == 8) || bits == 8 && !c.finite, "rounded or clamped like this")
	b.emitTyped(pure(func(hi, lo, _ uint64) uint64 {
		return c.convertFloat(hi)<<bits | c.convertFloat(lo)
	}).run(), to.plain(), tf32, tf32)
}

// convertHalves emits a conversion of both halves of a pair: of floats of 16 bits to 8, or back.
func (b *builder) convertHalves(o *opcode, to, from *floatFormat, toType, fromType typ) {
	c := o.takeCast(to, from)
	o.refuseIf(c.round != toEven || c.finite != (to != half), "rounded or clamped like this")
	mask := uint64(1)<<from.size - 1
	b.emitTyped(pure(func(v, _, _ uint64) uint64 {
		return c.convertFloat(v>>from.size&mask)<<to.size | c.convertFloat(v&mask)
	}).run(), toType.plain(), fromType.plain())
}

// convertTensor emits a conversion to tf32, whose low bits are zero.
func (b *builder) convertTensor(o *opcode) {
	c := cast{to: tensor, from: single, round: away}
	convert := func(v uint64) uint64 { return c.convertFloat(v) << 13 }
	if o.take("rna") {
		exact := convert
		convert = func(v uint64) uint64 {
			if single.isNaN(v) {
				return v >> 13 << 13
			}
			return exact(v)
		}
		if o.take("satfinite") {
			convert = func(v uint64) uint64 { return finiteTensor(v, exact) }
		}
	} else {
		c.takeTensor(o)
	}
	b.emitTyped(pure(func(v, _, _ uint64) uint64 { return convert(v) }).run(), tb32, tf32)
}

// finiteTensor converts and clamps as the GPU does: an infinity becomes the number
// before it in the order of bits, and so does NaN, which may stay one.
func finiteTensor(v uint64, convert func(uint64) uint64) uint64 {
	const infinity, last = 0x7f800000, 1 << 13
	cut := v >> 13 << 13
	switch {
	case v&^single.sign() >= infinity:
		return cut - last
	case convert(v)&^single.sign() == infinity:
		return cut
	}
	return convert(v)
}

// takeTensor takes the modifiers of the other ways to round.
func (c *cast) takeTensor(o *opcode) {
	*c = o.takeCast(tensor, single)
	o.refuseIf(c.round != toEven && c.round != toZero || c.finite, "rounded or clamped like this")
}

// packIntegers builds cvt.pack: a and b clamped to 16 bits, the first to the upper
// half; or to 8 bits, with what c has moved up.
func (b *builder) packIntegers(o *opcode, to, from typ) {
	o.refuseIf(!o.take("sat") || from != ts32 || !to.integer() || to.size > 2, "not from .%s to .%s", from, to)
	p := part{to, 0, to.size}
	bits, mask := 8*to.size, to.mask()
	join := func(hi, lo, c uint64) uint64 {
		x, y := uint64(p.saturate(ts32.signed64(hi))), uint64(p.saturate(ts32.signed64(lo)))
		return (x&mask)<<bits | y&mask | c<<(2*bits)&0xffffffff
	}
	if to.size == 2 {
		b.emitTyped(pure(func(a, b, _ uint64) uint64 { return join(a, b, 0) }).run(), tb32, ts32, ts32)
		return
	}
	o.refuseIf(o.typ(2) != tb32, "without .b32")
	b.emitTyped(pure(join).run(), tb32, ts32, ts32, tb32)
}
