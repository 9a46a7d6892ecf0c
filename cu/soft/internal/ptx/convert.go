package ptx

import "math"

// move builds mov: of registers, numbers, addresses, and vectors packed into
// one register or taken apart.
func move(b *builder, o *opcode) {
	t := o.typ(0)
	args := b.arguments(2)
	switch {
	case args[0].what == isVector:
		b.unpack(o, t, args[0].vec, args[1])
		return
	case args[1].what == isVector:
		b.pack(o, t, args[0], args[1].vec)
		return
	}
	i := inst{run: runMove, d: b.target(args[0], t)}
	if from := args[1]; from.what == isSpecial && from.special.changes {
		i.run = func(t *thread, i *inst) { t.r[i.d] = from.special.value(t) }
		b.fits(from, t, typ.holds)
	} else {
		i.a = b.source(from, t)
	}
	b.emit(i)
}

func runMove(t *thread, i *inst) { t.r[i.d] = t.r[i.a] }

// unpack takes a register apart, the low bits first.
func (b *builder) unpack(o *opcode, t typ, to []operand, from operand) {
	part := o.partOf(t, len(to))
	i := inst{a: b.source(from, t)}
	for _, v := range to {
		i.vec = append(i.vec, b.target(v, part))
	}
	shift, mask := 8*part.size, part.mask()
	i.run = func(t *thread, i *inst) {
		v := t.r[i.a]
		for _, s := range i.vec {
			t.r[s] = v & mask
			v >>= shift
		}
	}
	b.emit(i)
}

// pack makes a register of parts, the low bits first.
func (b *builder) pack(o *opcode, t typ, to operand, from []operand) {
	part := o.partOf(t, len(from))
	i := inst{d: b.target(to, t)}
	for _, v := range from {
		i.vec = append(i.vec, b.source(v, part))
	}
	shift, mask := 8*part.size, part.mask()
	i.run = func(t *thread, i *inst) {
		var v uint64
		for k := len(i.vec) - 1; k >= 0; k-- {
			v = v<<shift | t.r[i.vec[k]]&mask
		}
		t.r[i.d] = v
	}
	b.emit(i)
}

// partOf returns the type of each of n parts of t.
func (o *opcode) partOf(t typ, n int) typ {
	part := typ{bitsKind, t.size / max(1, n)}
	o.refuseIf(part.size*n != t.size || part.size == 0, "%d parts of .%s", n, t)
	return part
}

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

// make gives the function from a register's content to another's.
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

// value is an operand as a whole number: signed ones extended to 64 bits.
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

// float is an operand as a double.
func (c conversion) float(v uint64) float64 {
	if c.from != tf32 {
		return c.from.layout().value(v)
	}
	f := f32(v)
	if c.flush {
		f = flush(f)
	}
	return float64(f)
}

// convertAddress builds cvta.
func convertAddress(b *builder, o *opcode) {
	to := o.take("to")
	s, ok := oneOf(o, spaceNames)
	o.refuseIf(!ok, "without a space")
	window := s.window()
	if s == param {
		o.refuseIf(!b.f.entry, "addresses of a function's parameters")
		window = paramWindow
	}
	if to {
		window = -window
	}
	t := o.only(tu64)
	b.emitTyped(func(t *thread, i *inst) { t.r[i.d] = t.r[i.a] + window }, t, t)
}
