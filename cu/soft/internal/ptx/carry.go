package ptx

// carried builds add, addc, sub, subc, mad and madc where they read or write the
// carry; what does neither is left to another builder.
func carried(reads bool, other build) build {
	return func(b *builder, o *opcode) {
		writes := o.take("cc")
		if !reads && !writes {
			other(b, o)
			return
		}
		t := o.typ(0)
		o.refuseIf(!t.integer() || t.size < 4, "the carry with .%s", t)
		var f run
		n := 2
		switch o.name {
		case "add", "addc":
			f = carry(t, reads, writes, false, func(t *thread, i *inst) (a, b uint64) { return t.r[i.a], t.r[i.b] })
		case "sub", "subc":
			f = carry(t, reads, writes, true, func(t *thread, i *inst) (a, b uint64) { return t.r[i.a], t.r[i.b] })
		default:
			n = 3
			f = carryProduct(o, t, reads, writes)
		}
		b.emitTyped(f, []typ{t, t, t, t}[:1+n]...)
	}
}

// carry adds or subtracts two numbers, and the carry. A GPU subtracts by adding the
// complement: where there is no borrow the carry is set, and an addc that follows
// adds it. nvcc's division of 128 bits relies on that.
func carry(t typ, reads, writes, minus bool, get func(*thread, *inst) (a, b uint64)) run {
	mask := t.mask()
	return func(th *thread, i *inst) {
		a, b := get(th, i)
		in := boolBits(minus)
		if reads {
			in = th.carry
		}
		if minus {
			b = ^b & mask
		}
		sum := (a + b + in) & mask
		out := sum < a || in != 0 && sum == a
		th.r[i.d] = sum
		if writes {
			th.carry = boolBits(out)
		}
	}
}

// carryProduct adds c to the low or the high half of a product.
func carryProduct(o *opcode, t typ, reads, writes bool) run {
	rows := highRows
	if o.take("lo") {
		rows = mulRows.ints
	} else if !o.take("hi") {
		panic(o.refuse("without .lo or .hi"))
	}
	f := rows[t]
	return carry(t, reads, writes, false, func(th *thread, i *inst) (a, b uint64) {
		c := th.r[i.c] // d may be the same register
		f(th, i)
		return th.r[i.d], c
	})
}

// noOther refuses what is nothing without the carry.
func noOther(_ *builder, o *opcode) { panic(o.refuse("without the carry")) }
