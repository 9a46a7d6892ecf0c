package ptx

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
