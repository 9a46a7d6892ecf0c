package ptx

// compareSmall builds setp of 16 bits and pairs, and leaves the rest to another
// builder. A pair has a result for each half.
func compareSmall(other build) build {
	return func(b *builder, o *opcode) {
		if !o.typ(0).pair() {
			other(b, o)
			return
		}
		c := o.comparison(0)
		target := b.p.operand(b)
		if target.pair == nil {
			panic(o.refuse("without a second target"))
		}
		var i inst
		second := b.target(*target.pair, tpred)
		target.pair = nil
		i.d = b.target(target, tpred)
		not := c.operands(b, &i)
		i.run = func(t *thread, i *inst) {
			low, high := c.pairs(t, i, not)
			t.r[i.d], t.r[second] = boolBits(low), boolBits(high)
		}
		b.emit(i)
	}
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

// setSmall builds set where the result or the operands are of 16 bits, and leaves
// the rest to another builder.
func setSmall(other build) build {
	return func(b *builder, o *opcode) {
		to := o.typ(0)
		from := o.typ(1)
		if !to.small() && !from.small() {
			other(b, o)
			return
		}
		b.setSmall(o, to, from)
	}
}

func (b *builder) setSmall(o *opcode, to, from typ) {
	yes, ok := setValue(to, from)
	if !ok {
		panic(o.refuse("from .%s to .%s", from, to))
	}
	c := o.comparison(1)
	target := b.p.operand(b)
	i := inst{d: b.target(target, to.plain())}
	not := c.operands(b, &i)
	i.run = func(t *thread, i *inst) {
		if from.pair() {
			low, high := c.pairs(t, i, not)
			t.r[i.d] = boolBits(low)*yes | boolBits(high)*yes<<16
			return
		}
		is, _ := c.result(t, i, not)
		t.r[i.d] = boolBits(is) * yes
	}
	b.emit(i)
}

// setValue is what set gives where the comparison holds: 1.0, or all ones, for
// each half of a pair.
func setValue(to, from typ) (yes uint64, ok bool) {
	switch {
	case from.pair() && to == from:
		return to.layout().one(), true
	case from.pair():
		return 0xffff, to == tu32 || to == ts32
	case to.pair():
		return 0, false
	case to.small():
		return to.layout().one(), true
	}
	return to.mask(), to.integer() && (to.size == 2 || to.size == 4)
}
