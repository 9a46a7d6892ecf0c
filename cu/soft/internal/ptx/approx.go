package ptx

import "math"

// Approximate instructions give the exact result, rounded: a GPU is off by a few
// units in the last place, and not always by as many. docs/ptx.md has how many.

// approximations are functions of the operands, as doubles.
var approximations = map[string]func(a, b float64) float64{
	"ex2":   func(a, _ float64) float64 { return math.Exp2(a) },
	"lg2":   func(a, _ float64) float64 { return math.Log2(a) },
	"sin":   func(a, _ float64) float64 { return math.Sin(turn(a)) },
	"cos":   func(a, _ float64) float64 { return math.Cos(turn(a)) },
	"tanh":  func(a, _ float64) float64 { return math.Tanh(a) },
	"rcp":   func(a, _ float64) float64 { return 1 / a },
	"sqrt":  func(a, _ float64) float64 { return math.Sqrt(a) },
	"rsqrt": func(a, _ float64) float64 { return 1 / math.Sqrt(a) },
	"div":   func(a, b float64) float64 { return a / b },
}

// turn reduces an angle as a GPU does: by a product of 32 bits with 1/2π, rounded
// towards zero, which leaves nothing of large ones.
func turn(a float64) float64 {
	turns := single.value(single.mul(b32(float32(a)), b32(1/(2*math.Pi)), toZero))
	return 2 * math.Pi * (turns - math.RoundToEven(turns))
}

// divideBy multiplies with an inverse, which is zero if it were subnormal.
func divideBy(a, b float64) float64 {
	if math.Abs(b) > 1<<126 && !math.IsInf(b, 0) {
		return a * math.Copysign(0, b)
	}
	return a / b
}

// approximate builds what has .approx or .full.
func approximate(b *builder, o *opcode) {
	t := o.typ(0)
	full := o.name == "div" && o.take("full")
	o.refuseIf(!full && !o.take("approx"), "without .approx")
	f, ok := approximations[o.name]
	n := 1
	if o.name == "div" {
		n = 2
	}
	if n == 2 && !full {
		f = divideBy
	}
	switch {
	case !ok:
		panic(o.refuse("no approximation"))
	case t == tf64:
		b.approximateDouble(o, f)
		return
	case t == tf32:
	case o.name != "ex2" && o.name != "tanh" || !t.small():
		panic(o.refuse("not with .%s", t))
	}
	l := t.format()
	g := pure(func(a, b, _ uint64) uint64 { return l.nearest(f(l.value(a), l.value(b))) })
	if (l == single || l == brain && o.name == "ex2") && o.take("ftz") {
		g = g.flushed(l)
	}
	b.emitPure(g, t, n)
}

// nearest returns the bits of a double's value.
func (l *floatFormat) nearest(v float64) uint64 {
	switch {
	case v != v:
		return l.nan
	case math.IsInf(v, 0):
		return boolBits(v < 0)*l.sign() | l.inf()
	}
	return l.round(double.open(b64(v)), toEven)
}

// approximateDouble builds rcp and rsqrt of doubles. With .ftz the low halves of
// operand and result are zero, and the rest is what counts.
func (b *builder) approximateDouble(o *opcode, f func(a, b float64) float64) {
	flushes := o.take("ftz")
	o.refuseIf(o.name != "rsqrt" && (o.name != "rcp" || !flushes), "not with .f64")
	g := pure(func(a, _, _ uint64) uint64 { return number64(f(f64(a), 0), a) })
	if flushes {
		whole := g.flushed(double)
		g = func(a, _, _ uint64) uint64 {
			v := whole(a>>32<<32, 0, 0)
			if double.isNaN(v) {
				v = nan32 << 32
			}
			return v >> 32 << 32
		}
	}
	b.emitPure(g, tf64, 1)
}
