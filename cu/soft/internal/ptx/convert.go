package ptx

import "math"

// roundings are ways to make a whole number of a float.
var roundings = map[string]func(float64) float64{
	"rni": math.RoundToEven, "rzi": math.Trunc, "rmi": math.Floor, "rpi": math.Ceil,
}

// convert builds cvt.
func convert(b *builder, o *opcode) {
	to := o.typ(0)
	from := o.typ(1)
	o.refuseIf(!to.converts() || !from.converts(), "from .%s to .%s", from, to)
	c := conversion{to: to, from: from, sat: o.take("sat"), flush: o.take("ftz")}
	c.whole, _ = oneOf(o, roundings)
	f := c.make(o)
	if from == tbf16 && to.size == 1 {
		b.emitByte(o, f, to)
		return
	}
	b.emitConversion(f, to.plain(), from.plain())
}

// emitByte emits a conversion of bf16 to a byte, which needs a register of that size.
func (b *builder) emitByte(o *opcode, f func(uint64) uint64, to typ) {
	args := b.arguments(2)
	o.refuseIf(args[0].what == isRegister && args[0].reg.typ.size != 1, "to a register that is wider")
	b.emitOperands(func(t *thread, i *inst) { t.r[i.d] = f(t.r[i.a]) }, args, to, tbf16.plain())
}

// converts reports whether there are conversions of the type that take it alone.
func (t typ) converts() bool { return t.integer() || t.kind == float || t.kind == bfloat }

// emitConversion takes the operands, whose registers may be wider than the types:
// a signed result is extended to all of its register.
func (b *builder) emitConversion(f func(uint64) uint64, to, from typ) {
	args := b.arguments(2)
	i := inst{d: b.wideTarget(args[0], to), a: b.wideSource(args[1], from)}
	extend := extender(to, args[0].reg.typ)
	i.run = func(t *thread, i *inst) { t.r[i.d] = f(t.r[i.a]) }
	if extend != nil {
		i.run = func(t *thread, i *inst) { t.r[i.d] = extend(f(t.r[i.a])) }
	}
	b.emit(i)
}

// extender extends a value's sign to a register that is wider; nil is for nothing
// to be done.
func extender(t, register typ) func(uint64) uint64 {
	if t.kind != signed || register.size <= t.size {
		return nil
	}
	mask := register.mask()
	return func(v uint64) uint64 { return uint64(t.signed64(v)) & mask }
}

type conversion struct {
	to, from   typ
	sat, flush bool
	whole      func(float64) float64 // nil: not to a whole number
}

// make returns the function from a register's content to another's.
func (c conversion) make(o *opcode) func(uint64) uint64 {
	toInt, fromInt := c.to.integer(), c.from.integer()
	o.refuseIf((c.flush && c.to != tf32 && c.from != tf32) || c.sat && c.to == tbf16, ".ftz or .sat")
	o.refuseIf(c.to == tbf16 && c.from.size == 1, "not from bytes to .bf16")
	switch {
	case !toInt:
		return c.toFloat(o)
	case toInt && fromInt:
		o.refuseIf(c.whole != nil, "nothing is rounded")
		o.refuseIf(c.sat && c.fits(), "nothing can be too large")
		return c.intToInt()
	}
	o.refuseIf(c.whole == nil, "without a rounding")
	return c.floatToInt()
}

// value returns an operand as a whole number: signed ones extended to 64 bits.
func (c conversion) value(v uint64) uint64 { return uint64(c.from.number(v)) }

func (c conversion) intToInt() func(uint64) uint64 {
	mask := c.to.mask()
	if !c.sat {
		return func(v uint64) uint64 { return c.value(v) & mask }
	}
	return func(v uint64) uint64 {
		v = c.value(v)
		negative := c.from.kind == signed && int64(v) < 0
		low, high := c.bounds()
		switch {
		case negative && (c.to.kind == unsigned || int64(v) < low):
			return uint64(low) & mask
		case !negative && v > high:
			return high
		}
		return v & mask
	}
}

// fits reports whether every number of the one type is one of the other.
func (c conversion) fits() bool {
	return c.from.size < c.to.size && (c.from.kind == unsigned || c.to.kind == signed)
}

// bounds are the least and the largest number of the type.
func (c conversion) bounds() (low int64, high uint64) {
	if c.to.kind == signed {
		return -1 << (8*c.to.size - 1), c.to.mask() >> 1
	}
	return 0, c.to.mask()
}

// nearestFloat converts whole numbers.
func (c conversion) nearestFloat() func(v uint64) uint64 {
	single := c.to.size == 4
	return func(v uint64) uint64 {
		v = c.value(v)
		var f32v float32
		var f64v float64
		if c.from.kind == signed {
			f32v, f64v = float32(int64(v)), float64(int64(v))
		} else {
			f32v, f64v = float32(v), float64(v)
		}
		if single {
			return b32(f32v)
		}
		return b64(f64v)
	}
}

// floatToInt clamps, as PTX has it. NaN is 0, but the top bit where either side has
// 64.
func (c conversion) floatToInt() func(uint64) uint64 {
	low, high := c.bounds()
	nan := uint64(0)
	if c.to.size == 8 || c.from.size == 8 {
		nan = 1 << (8*c.to.size - 1)
	}
	mask := c.to.mask()
	return func(v uint64) uint64 {
		f := c.float(v)
		switch f = c.whole(f); {
		case f != f:
			return nan
		case f <= float64(low):
			return uint64(low) & mask
		case f >= float64(high):
			return high
		case c.to.kind == signed:
			return uint64(int64(f)) & mask
		}
		return uint64(f) & mask
	}
}

// float returns an operand as a double.
func (c conversion) float(v uint64) float64 {
	if c.from != tf32 {
		return c.from.format().value(v)
	}
	f := f32(v)
	if c.flush {
		f = flush(f)
	}
	return float64(f)
}

// toFloat returns the function of a conversion to a float.
func (c conversion) toFloat(o *opcode) func(uint64) uint64 {
	f := cast{to: c.to.format(), from: c.from.format(), sat: c.sat, flush: c.flush}
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

// A cast is a conversion between floats, or of an integer to a float, that is
// rounded as it says.
type cast struct {
	to, from            *floatFormat
	round               rounding
	relu, finite, flush bool
	sat                 bool
}

// convertFloat returns the bits of a float in another format.
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

// convertInt returns the bits of a whole number.
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
