package ptx

// Instructions that only say how to be quick, or tell a profiler something: they are read
// and nothing comes of them. A kernel begins here when those before it in its stream have
// ended, so there is no grid to wait for either.

// hint builds one with some numbers, and one of some modifiers if there are any.
func hint(operands int, modifiers ...string) build {
	return func(b *builder, o *opcode) error {
		if len(modifiers) > 0 && !o.take(modifiers...) {
			return o.refuse("in this form")
		}
		args, err := b.arguments(operands)
		if err != nil {
			return err
		}
		for _, a := range args {
			if a.what != isInteger {
				return errorf(o.line, "a number belongs here")
			}
		}
		b.emit(inst{run: runNothing})
		return nil
	}
}

// hintProfiler builds pmevent, which is for a profiler.
func hintProfiler(b *builder, o *opcode) error {
	o.take("mask")
	return hint(1)(b, o)
}

// hintRegisters builds setmaxnreg, which says how many registers a warp needs.
func hintRegisters(b *builder, o *opcode) error {
	if _, err := o.only(tu32); err != nil {
		return err
	}
	if !o.take("inc", "dec") || !o.takeSync() {
		return o.refuse("in this form")
	}
	return hint(1, "aligned")(b, o)
}

// hintAt builds one that is about the 128 bytes at an address.
func hintAt(modifier string) build {
	return func(b *builder, o *opcode) error {
		o.take("global")
		if !o.take(modifier) {
			return o.refuse("without .%s", modifier)
		}
		args, err := b.arguments(2)
		if err != nil {
			return err
		}
		if args[0].what != isAddress || args[1].what != isInteger || args[1].bits != 128 {
			return errorf(o.line, "an address and 128 belong here")
		}
		b.emit(inst{run: runNothing})
		return nil
	}
}

// createPolicy builds createpolicy. Its result is for caches alone: 0 will do.
func createPolicy(b *builder, o *opcode) error {
	if _, err := o.only(tb64); err != nil {
		return err
	}
	if !o.take("fractional", "range", "cvt") {
		return o.refuse("in this form")
	}
	o.take("global", "L2")
	for range 2 {
		o.take("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged")
	}
	d, err := b.p.operand(b)
	if err != nil {
		return err
	}
	i := inst{run: func(t *thread, i *inst) { t.r[i.d] = 0 }}
	if i.d, err = b.target(d, tb64); err != nil {
		return err
	}
	b.emit(i)
	_, err = b.rest()
	return err
}

// policy takes the operand of an access that says how to use caches.
func (b *builder) policy(o *opcode) error {
	if !o.take("L2::cache_hint") {
		return nil
	}
	_, err := b.comma(tb64)
	return err
}
