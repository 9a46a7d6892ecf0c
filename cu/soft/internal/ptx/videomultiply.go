package ptx

import "math"

// videoMultiply builds vmad: a b + c, shifted right; one of them may be negated,
// or one more added.
func videoMultiply(b *builder, o *opcode) {
	types := o.intTypes(3)
	m := o.multiplyMode(types)
	d := b.p.operand(b)
	i := inst{d: b.target(d, types[0])}
	var p [3]part
	var minus [3]bool
	for k, s := range []*int32{&i.a, &i.b, &i.c} {
		b.p.expect(",")
		minus[k] = b.p.accept("-")
		p[k], *s = b.partSource(types[(k+1)%3])
	}
	o.refuseIf(!m.negate(minus), "these signs")
	i.run = func(t *thread, i *inst) {
		t.r[i.d] = m.result(p[0].get(t.r[i.a]), p[1].get(t.r[i.b]), t.r[i.c])
	}
	b.emit(i)
}

// A multiplyMode is how vmad computes.
type multiplyMode struct {
	shift                         int
	plusOne, sat, minusAB, minusC bool
	signed                        bool // for a shift, and for what is clamped
}

// multiplyMode takes the modifiers.
func (o *opcode) multiplyMode(types []typ) multiplyMode {
	m := multiplyMode{sat: o.take("sat"), plusOne: o.take("po"), signed: types[1].kind == signed || types[2].kind == signed}
	if o.take("shr7") {
		m.shift = 7
	} else if o.take("shr15") {
		m.shift = 15
	}
	return m
}

// negate sets which operands are, and reports whether they can be.
func (m *multiplyMode) negate(minus [3]bool) bool {
	m.minusAB, m.minusC = minus[0] != minus[1], minus[2]
	m.signed = m.signed || m.minusAB || m.minusC
	product := minus[0] || minus[1]
	return !(m.plusOne && (product || minus[2]) || product && minus[2])
}

// result is that of vmad. Operands of all 32 bits have signs, whatever their types.
func (m multiplyMode) result(a, b int64, c uint64) uint64 {
	v, third := int64(int32(a))*int64(int32(b)), int64(int32(c))
	if m.minusAB {
		v = -v
	}
	if m.minusC {
		third = -third
	}
	v += third
	if m.plusOne {
		v++
	}
	if m.signed {
		v >>= m.shift
	} else {
		v = int64(uint64(v) >> m.shift)
	}
	switch {
	case m.sat && m.signed:
		return clamp32(v)
	case m.sat:
		return uint64(max(0, min(math.MaxUint32, v)))
	}
	return uint64(uint32(v))
}
