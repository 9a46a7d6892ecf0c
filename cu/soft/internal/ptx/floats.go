package ptx

// An operation is one on floats that takes n operands, of any format.
type operation struct {
	n int
	f func(l *floatFormat, a, b, c uint64, r rounding) uint64
}

var operations = map[string]operation{
	"add":  {2, func(l *floatFormat, a, b, _ uint64, r rounding) uint64 { return l.add(a, b, r) }},
	"sub":  {2, func(l *floatFormat, a, b, _ uint64, r rounding) uint64 { return l.sub(a, b, r) }},
	"mul":  {2, func(l *floatFormat, a, b, _ uint64, r rounding) uint64 { return l.mul(a, b, r) }},
	"fma":  {3, (*floatFormat).fma},
	"mad":  {3, (*floatFormat).fma},
	"div":  {2, func(l *floatFormat, a, b, _ uint64, r rounding) uint64 { return l.div(a, b, r) }},
	"rcp":  {1, func(l *floatFormat, a, _, _ uint64, r rounding) uint64 { return l.div(l.one(), a, r) }},
	"sqrt": {1, func(l *floatFormat, a, _, _ uint64, r rounding) uint64 { return l.sqrt(a, r) }},
}

// arithmetic builds an operation: what the CPU cannot do itself, and leaves the
// rest to another builder.
func arithmetic(other build) build {
	return func(b *builder, o *opcode) {
		t := o.typ(0)
		l := t.format()
		switch {
		case l == nil:
			other(b, o)
		case t.small():
			o.refuseIf(o.name == "mad" || o.name == "div" || operations[o.name].n == 1, "not with .%s", o.text)
			b.byBits(o, t)
		case o.has("approx", "full"):
			approximate(b, o)
		case o.name != "add" && o.name != "sub" && o.name != "mul" && !o.has("rn", "rz", "rm", "rp"):
			panic(o.refuse("without a rounding"))
		case t == tf64 && o.has("ftz", "sat"):
			panic(o.refuse("not with .f64"))
		case o.has("sat") && operations[o.name].n == 1 || o.has("sat") && o.name == "div":
			panic(o.refuse(".sat"))
		case o.has("rz", "rm", "rp"):
			b.byBits(o, t)
		default:
			other(b, o)
		}
	}
}

// rounded returns the operation for a format. With .ftz subnormal operands and results
// are zeros.
func (op operation) rounded(l *floatFormat, r rounding, ftz bool) pure {
	if !ftz {
		return func(a, b, c uint64) uint64 { return op.f(l, a, b, c, r) }
	}
	zeros := flushing[l]
	return func(a, b, c uint64) uint64 { return op.f(zeros, l.flush(a), l.flush(b), l.flush(c), r) }
}

// byBits emits an operation that is not rounded to the nearest, or one of 16 bits, which
// always is.
func (b *builder) byBits(o *opcode, t typ) {
	r, rounded := oneOf(o, roundingNames)
	op, l := operations[o.name], t.format()
	o.refuseIf(t.small() && (r != toEven || !rounded && o.name == "fma"), "rounded like this")
	f := op.rounded(l, r, l != brain && o.take("ftz"))
	switch {
	case t == tf64:
		f = f.keepNaN(op.n)
	case l != brain && o.take("sat"):
		f = f.saturated(l)
	case t.small() && o.name == "fma" && o.take("relu"):
		f = f.rectified(l)
	}
	b.emitPure(f, t, op.n)
}

// keepNaN makes the result the operand that is a NaN, as doubles do: the first of two, and b
// before a of three.
func (f pure) keepNaN(n int) pure {
	return func(a, b, c uint64) uint64 {
		v := f(a, b, c)
		switch {
		case f64(v) == f64(v):
			return v
		case n == 3:
			a, b = b, a
		}
		return number64(f64(v), []uint64{a, b, c}[:n]...)
	}
}

// flushed takes subnormal operands and results for zeros.
func (f pure) flushed(l *floatFormat) pure {
	return func(a, b, c uint64) uint64 { return l.flush(f(l.flush(a), l.flush(b), l.flush(c))) }
}

// saturated clamps to 0 … 1, and makes 0 of NaN.
func (f pure) saturated(l *floatFormat) pure {
	return func(a, b, c uint64) uint64 { return l.saturate(f(a, b, c)) }
}

func (l *floatFormat) saturate(v uint64) uint64 {
	switch {
	case v&l.sign() != 0, l.isNaN(v):
		return 0
	case v > l.one():
		return l.one()
	}
	return v
}

// rectified replaces negative results by 0.
func (f pure) rectified(l *floatFormat) pure {
	return func(a, b, c uint64) uint64 { return l.relu(f(a, b, c)) }
}

func (l *floatFormat) relu(v uint64) uint64 {
	switch {
	case l.isNaN(v):
		return l.nan
	case v&l.sign() != 0:
		return 0
	}
	return v
}

// value returns a number as a double, which holds all of 32 bits and less.
func (l *floatFormat) value(v uint64) float64 {
	switch l {
	case single:
		return float64(f32(v))
	case double:
		return f64(v)
	}
	if l.isNaN(v) {
		return f64(nan64)
	}
	if l.isInf(v) {
		return f64(double.inf() | boolBits(v&l.sign() != 0)<<63)
	}
	return f64(double.round(l.open(v), toEven))
}

// extremum builds min and max of floats with all their modifiers, and leaves the
// rest to another builder.
func extremum(larger bool, other build) build {
	return func(b *builder, o *opcode) {
		t := o.typ(0)
		l := t.format()
		o.refuseIf(l != nil && o.has("rn", "sat"), "nothing is rounded or clamped")
		if t == ts32 && o.has("relu") {
			b.emitPure(o.intPure(t), t, 2)
			return
		}
		if l == nil || t == tf64 {
			other(b, o)
			return
		}
		flush := l != brain && o.take("ftz")
		f := l.extremum(larger, o.take("NaN"), o.takePair("xorsign", "abs"))
		if flush {
			f = f.flushed(l)
		}
		b.emitPure(f, t, 2)
	}
}

// takePair takes two modifiers that belong together.
func (o *opcode) takePair(first, second string) bool {
	for i := range len(o.mods) - 1 {
		if o.mods[i] == first && o.mods[i+1] == second {
			o.mods = append(o.mods[:i:i], o.mods[i+2:]...)
			return true
		}
	}
	return false
}

// extremum is min or max: of a number and NaN the number, unless NaN is to win;
// of signed zeros -0 is less. xorsign compares without signs, and gives that of
// both multiplied.
func (l *floatFormat) extremum(larger, nan, xorsign bool) pure {
	pick := minNum
	if larger {
		pick = maxNum
	}
	return func(a, b, _ uint64) uint64 {
		sign := uint64(0)
		if xorsign {
			sign = (a ^ b) & l.sign()
			a, b = a&^l.sign(), b&^l.sign()
		}
		switch {
		case l.isNaN(a) && l.isNaN(b), nan && (l.isNaN(a) || l.isNaN(b)):
			return l.nan
		case l.isNaN(a):
			return b | sign
		case l.isNaN(b):
			return a | sign
		}
		if v := pick(l.value(a), l.value(b)); b64(v) == b64(l.value(a)) {
			return a | sign
		}
		return b | sign
	}
}

// signs builds neg and abs, of which f changes the sign bit.
func signs(f func(v, sign uint64) uint64, other build) build {
	return func(b *builder, o *opcode) {
		t := o.typ(0)
		l := t.format()
		o.refuseIf(l != nil && o.has("rn", "sat"), "nothing is rounded or clamped")
		if l == nil || t == tf64 || t == tf32 {
			other(b, o)
			return
		}
		g := pure(func(a, _, _ uint64) uint64 {
			if l.isNaN(a) {
				return l.nan
			}
			return f(a, l.sign())
		})
		if l == half && o.take("ftz") {
			g = g.flushed(l)
		}
		b.emitPure(g, t, 1)
	}
}

func flipped(v, sign uint64) uint64 { return v ^ sign }
func cleared(v, sign uint64) uint64 { return v &^ sign }

// copySign builds copysign: the sign of a, and the rest of b.
func copySign(b *builder, o *opcode) {
	t := o.only(tf32, tf64)
	sign := t.format().sign()
	b.emitPure(func(a, b, _ uint64) uint64 { return a&sign | b&^sign }, t, 2)
}

// testNumber builds testp.
func testNumber(b *builder, o *opcode) {
	t := o.typ(0)
	is, ok := oneOf(o, tests)
	o.refuseIf(!ok || t != tf32 && t != tf64, "not with .%s", t)
	l := t.format()
	b.emitTyped(pure(func(a, _, _ uint64) uint64 { return boolBits(is(l, a)) }).run(), tpred, t)
}

var tests = map[string]func(l *floatFormat, v uint64) bool{
	"finite":     func(l *floatFormat, v uint64) bool { return !l.isNaN(v) && !l.isInf(v) },
	"infinite":   (*floatFormat).isInf,
	"number":     func(l *floatFormat, v uint64) bool { return !l.isNaN(v) },
	"notanumber": (*floatFormat).isNaN,
	"normal":     func(l *floatFormat, v uint64) bool { return !l.isNaN(v) && !l.isInf(v) && !l.isSubnormal(v) }, // zero as well
	"subnormal":  (*floatFormat).isSubnormal,
}
