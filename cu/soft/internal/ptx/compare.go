package ptx

import "cmp"

// A comparison's result for operands of a type, as it is in the registers.
type relation func(a, b uint64) bool

// relationOf finds a comparison by its name, for a type.
func relationOf(name string, t typ) (relation, bool) {
	switch {
	case t.small():
		return floatRelation(name, t.format().value)
	case t.size == 1 || t.kind > predicate:
		return nil, false
	case t == tf32:
		return floatRelation(name, func(v uint64) float64 { return float64(f32(v)) })
	case t == tf64:
		return floatRelation(name, f64)
	case t.kind == signed:
		return intRelation(name, t.signed64)
	case t.kind == unsigned:
		name = cmp.Or(unsignedNames[name], name)
	case t.kind == bitsKind && name != "eq" && name != "ne":
		return nil, false
	}
	mask := t.mask()
	return intRelation(name, func(v uint64) uint64 { return v & mask })
}

func intRelation[T int64 | uint64](name string, get func(uint64) T) (relation, bool) {
	f, ok := map[string]relation{
		"eq": func(a, b uint64) bool { return get(a) == get(b) }, "ne": func(a, b uint64) bool { return get(a) != get(b) },
		"lt": func(a, b uint64) bool { return get(a) < get(b) }, "le": func(a, b uint64) bool { return get(a) <= get(b) },
		"gt": func(a, b uint64) bool { return get(a) > get(b) }, "ge": func(a, b uint64) bool { return get(a) >= get(b) },
	}[name]
	return f, ok
}

// unsignedNames gives lo, ls, hi and hs their usual names.
var unsignedNames = map[string]string{"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}

// Comparisons whose names end in u hold as well if there is a NaN.
func floatRelation(name string, get func(uint64) float64) (relation, bool) {
	f, ok := map[string]func(x, y float64) bool{
		"eq": func(x, y float64) bool { return x == y }, "ne": func(x, y float64) bool { return x < y || x > y },
		"lt": func(x, y float64) bool { return x < y }, "le": func(x, y float64) bool { return x <= y },
		"gt": func(x, y float64) bool { return x > y }, "ge": func(x, y float64) bool { return x >= y },
		"equ": func(x, y float64) bool { return !(x < y || x > y) }, "neu": func(x, y float64) bool { return x != y },
		"ltu": func(x, y float64) bool { return !(x >= y) }, "leu": func(x, y float64) bool { return !(x > y) },
		"gtu": func(x, y float64) bool { return !(x <= y) }, "geu": func(x, y float64) bool { return !(x < y) },
		"num": func(x, y float64) bool { return x == x && y == y }, "nan": func(x, y float64) bool { return x != x || y != y },
	}[name]
	if !ok {
		return nil, false
	}
	return func(a, b uint64) bool { return f(get(a), get(b)) }, true
}

// A join combines a comparison with a third operand, a predicate.
var joins = map[string]func(a, b bool) bool{
	"and": func(a, b bool) bool { return a && b },
	"or":  func(a, b bool) bool { return a || b },
	"xor": func(a, b bool) bool { return a != b },
}

// A comparison as setp and set have it.
type comparison struct {
	typ  typ
	is   relation
	join func(a, b bool) bool // or nil
}

// comparison takes the modifiers, the n-th type being that of the operands.
func (o *opcode) comparison(n int) (c comparison) {
	c.typ = o.typ(n)
	o.refuseIf(len(o.mods) == 0, "without a comparison")
	name := o.mods[0]
	var ok bool
	c.is, ok = relationOf(name, c.typ)
	o.refuseIf(!ok, ".%s of .%s", name, c.typ)
	o.take(name)
	c.join, _ = oneOf(o, joins)
	if l := c.typ.format(); (l == single || l == half) && o.take("ftz") {
		is := c.is
		c.is = func(a, b uint64) bool { return is(l.flush(a), l.flush(b)) }
	}
	c.typ = c.typ.plain()
	return c
}

// operands takes a, b, and where there is a join, c; after a comma.
func (c comparison) operands(b *builder, i *inst) (not bool) {
	args := 2
	if c.join != nil {
		args = 3
	}
	b.p.expect(",")
	list := b.arguments(args)
	i.a = b.source(list[0], c.typ)
	i.b = b.source(list[1], c.typ)
	if c.join == nil {
		return false
	}
	not = list[2].not
	list[2].not = false
	i.c = b.source(list[2], tpred)
	return not
}

// result returns what the comparison gives; with a join and a second target, that gets
// the join with the comparison's contrary.
func (c comparison) result(t *thread, i *inst, not bool) (first, second bool) {
	is := c.is(t.r[i.a], t.r[i.b])
	if c.join == nil {
		return is, !is
	}
	p := (t.r[i.c] != 0) != not
	return c.join(is, p), c.join(!is, p)
}

// compare builds setp. A pair has a result for each half.
func compare(b *builder, o *opcode) {
	pair := o.typ(0).pair()
	c := o.comparison(0)
	target := b.p.operand(b)
	second := int32(-1)
	if target.pair != nil {
		second = b.target(*target.pair, tpred)
		target.pair = nil
	}
	i := inst{d: b.target(target, tpred)}
	not := c.operands(b, &i)
	switch {
	case pair && second < 0:
		panic(o.refuse("without a second target"))
	case pair:
		i.run = func(t *thread, i *inst) {
			low, high := c.pairs(t, i, not)
			t.r[i.d], t.r[second] = boolBits(low), boolBits(high)
		}
	case second >= 0:
		i.run = func(t *thread, i *inst) {
			p, q := c.result(t, i, not)
			t.r[i.d], t.r[second] = boolBits(p), boolBits(q)
		}
	case c.join == nil:
		is := c.is
		i.run = func(t *thread, i *inst) { t.r[i.d] = boolBits(is(t.r[i.a], t.r[i.b])) }
	default:
		i.run = func(t *thread, i *inst) {
			p, _ := c.result(t, i, not)
			t.r[i.d] = boolBits(p)
		}
	}
	b.emit(i)
}

// compareToValue builds set, which gives all ones or 1.0.
func compareToValue(b *builder, o *opcode) {
	to, from := o.typ(0), o.typ(1)
	yes, ok := setValue(to, from)
	o.refuseIf(!ok, "from .%s to .%s", from, to)
	c := o.comparison(1)
	i := inst{d: b.target(b.p.operand(b), to.plain())}
	not := c.operands(b, &i)
	i.run = func(t *thread, i *inst) {
		is, _ := c.result(t, i, not)
		t.r[i.d] = boolBits(is) * yes
	}
	if from.pair() {
		i.run = func(t *thread, i *inst) {
			low, high := c.pairs(t, i, not)
			t.r[i.d] = boolBits(low)*yes | boolBits(high)*yes<<16
		}
	}
	b.emit(i)
}

// pairs compares the halves of two pairs.
func (c comparison) pairs(t *thread, i *inst, not bool) (low, high bool) {
	x, y := t.r[i.a], t.r[i.b]
	low, high = c.is(x&0xffff, y&0xffff), c.is(x>>16&0xffff, y>>16&0xffff)
	if c.join != nil {
		p := (t.r[i.c] != 0) != not
		low, high = c.join(low, p), c.join(high, p)
	}
	return low, high
}

// setValue returns what set gives where the comparison holds: 1.0, or all ones, for
// each half of a pair.
func setValue(to, from typ) (yes uint64, ok bool) {
	switch {
	case from.pair() && to == from:
		return to.format().one(), true
	case from.pair():
		return 0xffff, to == tu32 || to == ts32
	case to.pair():
		return 0, false
	case to.small(), to == tf32 && !from.small():
		return to.format().one(), true
	}
	return to.mask(), to.integer() && (to.size == 4 || to.size == 2 && from.small())
}

// choose builds selp.
func choose(b *builder, o *opcode) {
	t := o.typ(0)
	o.refuseIf(t.kind > float || t.size == 1 || t == tf16, "not with .%s", t)
	args := b.arguments(4)
	i := inst{d: b.target(args[0], t), a: b.source(args[1], t), b: b.source(args[2], t), c: b.source(args[3], tpred)}
	i.run = func(t *thread, i *inst) {
		if t.r[i.c] != 0 {
			t.r[i.d] = t.r[i.a]
		} else {
			t.r[i.d] = t.r[i.b]
		}
	}
	b.emit(i)
}
