package ptx

// regions are the ranges of generic addresses of spaces.
var regions = map[space]struct{ from, size uint64 }{
	shared: {sharedWindow, windowSize}, local: {localWindow, windowSize}, param: {paramWindow, windowSize}, global: {0, sharedWindow},
}

// isSpace builds isspacep: whether an address is one of a space.
func isSpace(b *builder, o *opcode) {
	s, ok := oneOf(o, spaceNames)
	if ok && s == constant {
		b.isConstant()
		return
	}
	r, known := regions[s]
	o.refuseIf(!ok || !known, "of this space")
	b.emitTyped(func(t *thread, i *inst) { t.r[i.d] = boolBits(t.r[i.a]-r.from < r.size) }, tpred, tu64)
}

// isConstant emits the instruction for constants, which lie in the memory of the
// device.
func (b *builder) isConstant() {
	b.emitTyped(func(t *thread, i *inst) {
		t.r[i.d] = boolBits(t.block.launch.isConstant(t.r[i.a]))
		t.rest()
	}, tpred, tu64)
}

func (l *launched) isConstant(address uint64) bool {
	for _, v := range l.module.variables {
		if v.space == constant && address-l.address(v) < uint64(v.size) {
			return true
		}
	}
	return false
}
