package ptx

// arguments takes n operands with commas between.
func (b *builder) arguments(n int) []operand {
	var list []operand
	for i := range n {
		if i > 0 {
			b.p.expect(",")
		}
		o := b.p.operand(b)
		list = append(list, o)
	}
	return list
}

// source returns the slot of an operand that is read as a type.
func (b *builder) source(o operand, t typ) int32 {
	return b.sourceAs(o, t, typ.holds)
}

// wideSource is source for registers that may be wider.
func (b *builder) wideSource(o operand, t typ) int32 {
	return b.sourceAs(o, t, typ.holdsWide)
}

func (b *builder) sourceAs(o operand, t typ, holds func(r, t typ) bool) int32 {
	switch {
	case o.not:
		panic(errorf(b.line, "! does not belong before %s", o.name))
	case o.pair != nil:
		panic(errorf(b.line, "| does not belong here"))
	}
	switch o.what {
	case isRegister:
		b.read = append(b.read, o.reg.slot)
		b.fits(o, t, holds)
		return o.reg.slot
	case isSpecial:
		if o.special.changes {
			panic(errorf(b.line, "%s can only be moved", o.name))
		}
		b.fits(o, t, holds)
		return b.specialSlot(o.special)
	case isInteger, isFloat:
		return b.constant(o, t)
	case isSymbol:
		return b.address(o, t)
	}
	panic(errorf(b.line, "an operand of this kind does not belong here"))
}

// fits wants a register that can be an operand of the type.
func (b *builder) fits(o operand, t typ, holds func(r, t typ) bool) {
	if !holds(o.reg.typ, t) {
		panic(errorf(b.line, "%s is a .%s register where a .%s belongs", o.name, o.reg.typ, t))
	}
}

// constant returns the slot of a number.
func (b *builder) constant(o operand, t typ) int32 {
	if t.kind == predicate {
		return b.presetSlot(boolBits(o.bits != 0), nil)
	}
	v := o.as(t, b.line)
	return b.presetSlot(v, nil)
}

// address returns the slot of a variable's address within its space, which only
// shared and local ones have fit into 32 bits.
func (b *builder) address(o operand, t typ) int32 {
	switch {
	case o.v == nil:
		return b.functionAddress(o, t)
	case t.kind == float || t.kind == predicate || t.size < 4 || t.size == 4 && (o.v.space == global || o.v.space == constant):
		panic(errorf(b.line, "the address of %s does not fit .%s", o.name, t))
	}
	return b.presetSlot(o.bits, o.v)
}

// functionAddress returns the slot of a function's address.
func (b *builder) functionAddress(o operand, t typ) int32 {
	f := b.p.m.functions[o.name]
	if f == nil || f.entry || o.bits != 0 || t.size != 8 || t.kind == float {
		panic(errorf(b.line, "there is no variable %s", o.name))
	}
	b.p.m.take(f)
	return b.presetSlot(f.address(), nil)
}

// target returns the slot of an operand that is written.
func (b *builder) target(o operand, t typ) int32 { return b.targetAs(o, t, typ.holds) }

// wideTarget is target for registers that may be wider.
func (b *builder) wideTarget(o operand, t typ) int32 {
	return b.targetAs(o, t, typ.holdsWide)
}

func (b *builder) targetAs(o operand, t typ, holds func(r, t typ) bool) int32 {
	switch {
	case o.not || o.pair != nil:
		panic(errorf(b.line, "a register belongs here"))
	case o.what == isSink:
		return b.newSlot()
	case o.what == isRegister:
		b.written = append(b.written, o.reg.slot)
		b.writesTo[o.reg.slot] = append(b.writesTo[o.reg.slot], len(b.f.code))
		b.fits(o, t, holds)
		return o.reg.slot
	}
	panic(errorf(b.line, "a register belongs here"))
}
