package ptx

// Instructions that only say how to be quick, or tell a profiler something: they are read
// and nothing comes of them. A kernel begins here when those before it in its stream have
// ended, so there is no grid to wait for either.

// hint builds one with some numbers, and one of some modifiers if there are any.
func hint(operands int, modifiers ...string) build {
	return func(b *builder, o *opcode) {
		o.refuseIf(len(modifiers) > 0 && !o.take(modifiers...), "in this form")
		args := b.arguments(operands)
		for _, a := range args {
			failIf(a.what != isInteger, o.line, "a number belongs here")
		}
		b.emit(inst{run: runNothing})
	}
}

// hintProfiler builds pmevent, which is for a profiler.
func hintProfiler(b *builder, o *opcode) {
	o.take("mask")
	hint(1)(b, o)
}

// hintRegisters builds setmaxnreg, which says how many registers a warp needs.
func hintRegisters(b *builder, o *opcode) {
	o.only(tu32)
	o.refuseIf(!o.take("inc", "dec") || !o.take("sync"), "in this form")
	hint(1, "aligned")(b, o)
}

// hintAt builds one that is about the 128 bytes at an address.
func hintAt(modifier string) build {
	return func(b *builder, o *opcode) {
		o.take("global")
		o.refuseIf(!o.take(modifier), "without .%s", modifier)
		args := b.arguments(2)
		failIf(args[0].what != isAddress || args[1].what != isInteger || args[1].bits != 128, o.line, "an address and 128 belong here")
		b.emit(inst{run: runNothing})
	}
}

// createPolicy builds createpolicy. Its result is for caches alone: 0 will do.
func createPolicy(b *builder, o *opcode) {
	o.only(tb64)
	o.refuseIf(!o.take("fractional", "range", "cvt"), "in this form")
	o.take("global", "L2")
	for range 2 {
		o.take("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged")
	}
	d := b.p.operand(b)
	b.emit(inst{run: func(t *thread, i *inst) { t.r[i.d] = 0 }, d: b.target(d, tb64)})
	b.rest()
}

// policy takes the operand of an access that says how to use caches.
func (b *builder) policy(o *opcode) {
	if !o.take("L2::cache_hint") {
		return
	}
	b.comma(tb64)
}
