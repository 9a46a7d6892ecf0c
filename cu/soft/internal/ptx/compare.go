package ptx

// A comparison's result for operands of a type, as it is in the registers.
type relation func(a, b uint64) bool

// relationOf finds a comparison by its name, for a type.
func relationOf(name string, t typ) (relation, bool) {
	switch {
	case t.small():
		return floatRelation(name, t.layout().value)
	case t.size == 1 || t.kind > predicate:
		return nil, false
	case t == tf32:
		return floatRelation(name, func(v uint64) float64 { return float64(f32(v)) })
	case t == tf64:
		return floatRelation(name, f64)
	case t.kind == signed:
		shift := 64 - 8*t.size
		return intRelation(name, func(v uint64) int64 { return int64(v<<shift) >> shift })
	case t.kind == unsigned:
		name = unsignedName(name)
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

// unsignedName gives lo, ls, hi and hs their usual names.
func unsignedName(name string) string {
	if n, ok := map[string]string{"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}[name]; ok {
		return n
	}
	return name
}

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
func (o *opcode) comparison(n int) (c comparison, err error) {
	if c.typ, err = o.typ(n); err != nil {
		return c, err
	}
	if len(o.mods) == 0 {
		return c, o.refuse("without a comparison")
	}
	name := o.mods[0]
	var ok bool
	if c.is, ok = relationOf(name, c.typ); !ok {
		return c, o.refuse(".%s of .%s", name, c.typ)
	}
	o.take(name)
	c.join, _ = oneOf(o, joins)
	if l := c.typ.layout(); (l == single || l == half) && o.take("ftz") {
		is := c.is
		c.is = func(a, b uint64) bool { return is(l.flush(a), l.flush(b)) }
	}
	c.typ = c.typ.plain()
	return c, nil
}

// operands takes a, b, and where there is a join, c; after a comma.
func (c comparison) operands(b *builder, i *inst) (not bool, err error) {
	args := 2
	if c.join != nil {
		args = 3
	}
	if err := b.p.expect(","); err != nil {
		return false, err
	}
	list, err := b.arguments(args)
	if err != nil {
		return false, err
	}
	if i.a, err = b.source(list[0], c.typ); err != nil {
		return false, err
	}
	if i.b, err = b.source(list[1], c.typ); err != nil || c.join == nil {
		return false, err
	}
	not = list[2].not
	list[2].not = false
	i.c, err = b.source(list[2], tpred)
	return not, err
}

// result is what the comparison gives; with a join and a second target, that gets
// the join with the comparison's contrary.
func (c comparison) result(t *thread, i *inst, not bool) (first, second bool) {
	is := c.is(t.r[i.a], t.r[i.b])
	if c.join == nil {
		return is, !is
	}
	p := (t.r[i.c] != 0) != not
	return c.join(is, p), c.join(!is, p)
}

// compare builds setp.
func compare(b *builder, o *opcode) error {
	c, err := o.comparison(0)
	if err != nil {
		return err
	}
	target, err := b.p.operand(b)
	if err != nil {
		return err
	}
	var i inst
	second, pair := int32(-1), target.pair
	if pair != nil {
		if second, err = b.target(*pair, tpred); err != nil {
			return err
		}
		target.pair = nil
	}
	if i.d, err = b.target(target, tpred); err != nil {
		return err
	}
	not, err := c.operands(b, &i)
	if err != nil {
		return err
	}
	i.run = func(t *thread, i *inst) {
		p, q := c.result(t, i, not)
		t.r[i.d] = boolBits(p)
		if second >= 0 {
			t.r[second] = boolBits(q)
		}
	}
	if c.join == nil && second < 0 {
		is := c.is
		i.run = func(t *thread, i *inst) { t.r[i.d] = boolBits(is(t.r[i.a], t.r[i.b])) }
	}
	b.emit(i)
	return nil
}

// compareToValue builds set, which gives all ones or 1.0.
func compareToValue(b *builder, o *opcode) error {
	c, err := o.comparison(1)
	if err != nil {
		return err
	}
	to, _ := o.typ(0)
	if to.size != 4 || to.kind == bitsKind || to.kind > float {
		return o.refuse("to .%s", to)
	}
	yes := to.mask()
	if to.kind == float {
		yes = b32(1)
	}
	target, err := b.p.operand(b)
	if err != nil {
		return err
	}
	var i inst
	if i.d, err = b.target(target, to); err != nil {
		return err
	}
	not, err := c.operands(b, &i)
	if err != nil {
		return err
	}
	i.run = func(t *thread, i *inst) {
		is, _ := c.result(t, i, not) // which may read what is written
		t.r[i.d] = 0
		if is {
			t.r[i.d] = yes
		}
	}
	b.emit(i)
	return nil
}

// choose builds selp.
func choose(b *builder, o *opcode) error {
	t, err := o.typ(0)
	if err != nil {
		return err
	}
	if t.kind > float || t.size == 1 || t == tf16 {
		return o.refuse("not with .%s", t)
	}
	args, err := b.arguments(4)
	if err != nil {
		return err
	}
	var i inst
	if i.d, err = b.target(args[0], t); err != nil {
		return err
	}
	for k, s := range []*int32{&i.a, &i.b} {
		if *s, err = b.source(args[k+1], t); err != nil {
			return err
		}
	}
	if i.c, err = b.source(args[3], tpred); err != nil {
		return err
	}
	i.run = func(t *thread, i *inst) {
		if t.r[i.c] != 0 {
			t.r[i.d] = t.r[i.a]
		} else {
			t.r[i.d] = t.r[i.b]
		}
	}
	b.emit(i)
	return nil
}
