package ptx

// branch builds bra.
func branch(b *builder, o *opcode) error {
	o.take("uni")
	label, err := b.p.word()
	if err != nil {
		return err
	}
	b.jumps = append(b.jumps, jump{len(b.f.code), label, b.scope, o.line})
	b.emit(inst{run: runBranch})
	return nil
}

// fence builds membar and fence.
func fence(b *builder, o *opcode) error {
	if o.name == "fence" && o.take("proxy") { // all memory is seen in one way
		if !o.take("alias", "async", "async.global", "async.shared::cta", "async.generic") {
			return o.refuse("of this proxy")
		}
		o.take("global", "shared::cta")
		b.emit(inst{run: runFence})
		return nil
	}
	o.take("sc", "acq_rel", "acquire", "release")
	if !o.take("gl", "cta", "cluster", "gpu", "sys") {
		return o.refuse("without a scope")
	}
	b.emit(inst{run: runFence})
	return nil
}
