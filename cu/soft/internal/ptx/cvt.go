package ptx

// A cast is a conversion between floats, or of an integer to a float, that is
// rounded as it says.
type cast struct {
	to, from            *layout
	round               rounding
	relu, finite, flush bool
	sat                 bool
}

// convertFloat gives the bits of a float in another layout.
func (c cast) convertFloat(v uint64) uint64 {
	if c.flush && c.from == single && c.to != half { // which the GPU does not do
		v = single.flush(v)
	}
	sign := boolBits(v&c.from.sign() != 0) * c.to.sign()
	var out uint64
	switch {
	case c.from.isNaN(v):
		out = c.to.nan
	case c.from.isInf(v):
		out = sign | c.to.inf()
	default:
		out = c.to.round(c.from.open(v), c.round)
	}
	return c.finish(out, sign, c.from.isNaN(v))
}

// convertInt gives the bits of a whole number.
func (c cast) convertInt(neg bool, v uint64) uint64 {
	return c.finish(c.to.round(exact{neg, v, 0}, c.round), 0, false)
}

// finish does what the modifiers say.
func (c cast) finish(v, sign uint64, nan bool) uint64 {
	if c.finite && !nan && v&^c.to.sign() > c.to.largest {
		v = sign | c.to.largest
	}
	if c.relu {
		v = c.to.relu(v)
	}
	if c.sat {
		v = c.to.saturate(v)
	}
	if c.flush && c.to == single {
		v = single.flush(v)
	}
	return v
}

// takeCast takes the modifiers of a conversion to a small float.
func (o *opcode) takeCast(to, from *layout) (c cast) {
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

// eighths are the layouts of pairs of 8 bits.
var eighths = map[typ]*layout{te4m3: e4m3, te5m2: e5m2}

// convertTwo emits a conversion of two operands, the first to the upper half.
func (b *builder) convertTwo(o *opcode, to typ, bits int) {
	l := to.layout()
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
func (b *builder) convertHalves(o *opcode, to, from *layout, toType, fromType typ) {
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

// toFloat gives the function of a conversion to a float.
func (c conversion) toFloat(o *opcode) func(uint64) uint64 {
	f := cast{to: c.to.layout(), from: c.from.layout(), sat: c.sat, flush: c.flush}
	if c.whole != nil {
		return c.toWhole(o, f)
	}
	var rounded bool
	f.round, rounded = oneOf(o, roundingNames)
	o.refuseIf(!c.takesRounding(rounded), "with or without a rounding")
	switch {
	case f.from == nil && !c.sat && !c.to.small() && f.round == toEven:
		return c.nearestFloat()
	case f.from == nil:
		return c.fromInt(f)
	case c.from == tbf16 && c.sat:
		panic(o.refuse(".sat from .bf16"))
	case c.from == tf32 && c.to.small():
		f.relu, f.finite = o.take("relu"), o.take("satfinite")
		clamps := f.relu || f.finite
		o.refuseIf(clamps && (f.round > toZero || c.flush || c.sat), "clamped in two ways, or rounded like this")
	case f.from == brain && f.to == single && !f.flush:
		return func(v uint64) uint64 { return v & 0xffff << 16 } // NaNs as they are
	case c.from == c.to && !c.from.small() && !c.sat && !c.flush:
		return func(v uint64) uint64 { return v }
	case f.from == double || f.to == double:
		return f.keepPayload
	}
	return f.convertFloat
}

// takesRounding reports whether a conversion can be with or without a rounding:
// one that loses nothing has none, but for those of bf16, where it does no harm.
func (c conversion) takesRounding(rounded bool) bool {
	if c.from == tbf16 && c.to != c.from || c.from == tf16 && c.to == tbf16 {
		return true
	}
	needs := c.from.integer() || c.to.size < c.from.size
	return needs == rounded
}

// toWhole makes a whole number of a float.
func (c conversion) toWhole(o *opcode, f cast) func(uint64) uint64 {
	o.refuseIf(c.to != c.from, "to a whole number of another type")
	return func(v uint64) uint64 {
		if f.from == double && double.isNaN(v) {
			return f.keepPayload(v)
		}
		return f.finish(f.from.nearest(c.whole(c.float(v))), 0, false)
	}
}

// fromInt converts a whole number.
func (c conversion) fromInt(f cast) func(uint64) uint64 {
	return func(v uint64) uint64 {
		v = c.value(v)
		if c.from.kind == signed && int64(v) < 0 {
			return f.convertInt(true, -v)
		}
		return f.convertInt(false, v)
	}
}

// keepPayload is convertFloat from and to doubles, where of a NaN as much is kept
// as there are bits.
func (c cast) keepPayload(v uint64) uint64 {
	switch {
	case !c.from.isNaN(v) || c.sat:
		return c.convertFloat(v)
	case c.flush && c.from == single: // this is arithmetic
		v = nan32
	}
	sign := boolBits(v&c.from.sign() != 0) * c.to.sign()
	rest := v & (1<<c.from.fraction - 1) << (63 - c.from.fraction) >> (63 - c.to.fraction)
	return sign | c.to.inf() | rest | 1<<(c.to.fraction-1)
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
