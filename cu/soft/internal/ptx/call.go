package ptx

import "slices"

// functionWindow is where functions have their addresses, which nothing else has.
const (
	functionWindow = uint64(1) << 61
	functionStep   = 16
)

// address returns what a pointer to the function holds.
func (f *function) address() uint64 { return functionWindow + functionStep*f.number }

// at returns the function that has an address, or nil.
func (m *Module) at(address uint64) *function {
	n := (address - functionWindow) / functionStep
	if n >= uint64(len(m.order)) || m.order[n].address() != address || m.order[n].entry {
		return nil
	}
	return m.order[n]
}

// take makes a function one that can be called by its address.
func (m *Module) take(f *function) {
	if !f.taken {
		f.taken = true
		m.pointed.calls = append(m.pointed.calls, f)
	}
}

// alias takes .alias name, function; which stands for it.
func (p *parser) alias() {
	line := p.line()
	name := p.word()
	p.expect(",")
	of := p.word()
	p.aliases = append(p.aliases, func() {
		f, g := p.m.functions[name], p.m.functions[of]
		failIf(f == nil || g == nil || !f.declared || g.declared || f.entry || g.entry, line, "%s cannot stand for %s", name, of)
		f.alias, f.calls = g, []*function{g}
	})
	p.expect(";")
}

// actual returns the function that f stands for, or itself.
func (f *function) actual() *function {
	if f.alias != nil {
		return f.alias
	}
	return f
}

// A signature is what a function takes and gives.
type signature struct{ result, params []parameter }

// prototype takes .callprototype, behind its name and that word.
func (b *builder) prototype() (s signature) {
	p := b.p
	if p.accept("(") {
		s.result = p.result()
	}
	p.word()
	if p.accept("(") {
		s.params = p.parameters()
	}
	p.accept(".noreturn")
	p.expect(";")
	return s
}

// targets takes the names behind .calltargets or .branchtargets.
func (b *builder) targets() (names []string) {
	b.p.list(func() { names = append(names, b.p.word()) })
	return names
}

// named takes what a label names that is no place in the code, and reports whether
// it does.
func (b *builder) named(label string) (ok bool) {
	s := b.scope
	switch {
	case b.p.accept(".callprototype"):
		s.prototypes[label] = b.prototype()
	case b.p.accept(".calltargets"):
		names := b.targets()
		f := b.p.m.functions[names[0]]
		failIf(f == nil, b.p.line(), "there is no function %s", names[0])
		s.prototypes[label] = signature{f.result, f.params}
	case b.p.accept(".branchtargets"):
		t := &labelTable{scope: s}
		t.labels = b.targets()
		s.tables[label] = t
	default:
		return false
	}
	return true
}

// A callee is what is called, as it is written: a name, or a register with a
// signature.
type callee struct {
	name      string
	reg       int32 // or -1
	signature signature
}

// call builds a call of a device function: its parameters are variables of the
// caller's, and are copied between the frames.
func call(b *builder, o *opcode) {
	o.take("uni")
	var result, params []operand
	if b.p.accept("(") {
		result = b.list()
		b.p.expect(",")
	}
	c := callee{reg: -1}
	c.name = b.p.word()
	if b.p.accept(",") && b.p.accept("(") {
		params = b.list()
		b.p.accept(",")
	}
	r, indirect := b.register(c.name)
	if indirect {
		failIf(r.typ.size != 8 || r.typ.kind == float, o.line, "%s cannot hold the address of a function", c.name)
		c.reg = r.slot
		b.read = append(b.read, r.slot)
		b.callIndirect(o, c, result, params)
		return
	}
	b.callDirect(o, c.name, result, params)
}

// callDirect emits the call of a function that may not be known yet.
func (b *builder) callDirect(o *opcode, name string, result, params []operand) {
	at, f := len(b.f.code), b.f
	b.emit(inst{})
	b.p.later = append(b.p.later, func() {
		callee := b.p.m.functions[name]
		failIf(callee == nil || callee.entry, o.line, "there is no function %s", name)
		callee = callee.actual()
		in := transfers(o, params, callee.params, true)
		out := transfers(o, result, callee.result, false)
		if callee.declared {
			f.code[at].run = native(o, callee, in, out)
			return
		}
		f.code[at].run = func(t *thread, _ *inst) { t.call(callee, in, out) }
		caller := b.p.m.functions[f.name] // which a declaration may have made before
		caller.calls = append(caller.calls, callee)
	})
}

// callIndirect emits the call of whatever function has an address then, if that is
// one of the signature that is given.
func (b *builder) callIndirect(o *opcode, c callee, result, params []operand) {
	name := b.p.word()
	found := false
	for s := b.scope; s != nil && !found; s = s.outer {
		c.signature, found = s.prototypes[name]
	}
	failIf(!found, o.line, "there is no prototype %s", name)
	in := transfers(o, params, c.signature.params, true)
	out := transfers(o, result, c.signature.result, false)
	f := b.f
	b.p.later = append(b.p.later, func() {
		caller := b.p.m.functions[f.name]
		if n := len(caller.calls); n == 0 || caller.calls[n-1] != b.p.m.pointed {
			caller.calls = append(caller.calls, b.p.m.pointed)
		}
	})
	b.emit(inst{a: c.reg, run: func(t *thread, i *inst) { t.callAt(t.r[i.a], c.signature, in, out) }})
}

// callAt calls the function at an address. Where its parameters lie in its frame is
// only known now.
func (t *thread) callAt(address uint64, s signature, in, out []transfer) {
	f := t.block.launch.module.at(address)
	if f == nil || f.actual().declared || !s.of(f.actual()) {
		t.fail(BadJump, address)
		return
	}
	f = f.actual()
	in, out = append([]transfer(nil), in...), append([]transfer(nil), out...)
	for k := range in {
		in[k].to = f.params[k].at
	}
	for k := range out {
		out[k].from = f.result[k].at
	}
	t.call(f, in, out)
}

// of reports whether a function has the signature.
func (s signature) of(f *function) bool {
	alike := func(p, q parameter) bool { return p.size == q.size }
	return slices.EqualFunc(s.result, f.result, alike) && slices.EqualFunc(s.params, f.params, alike)
}

// list takes operands up to a closing parenthesis.
func (b *builder) list() (list []operand) {
	for !b.p.accept(")") {
		if len(list) > 0 {
			b.p.expect(",")
		}
		o := b.p.operand(b)
		list = append(list, o)
	}
	return list
}

// transfers says how parameters are copied. Places are within the frames.
func transfers(o *opcode, args []operand, params []parameter, in bool) []transfer {
	failIf(len(args) != len(params), o.line, "a call with %d parameters of a function that has %d", len(args), len(params))
	var list []transfer
	for i, a := range args {
		failIf(a.what != isSymbol || a.v == nil || a.v.space != param || !a.v.framed || a.bits != 0 || a.not || a.pair != nil, o.line, "only .param variables can be passed")
		p := params[i]
		failIf(a.v.size < p.size, o.line, "%s has %d bytes, and the function takes %d", a.v.name, a.v.size, p.size)
		m := transfer{a.v.at, p.at, p.size}
		if !in {
			m.from, m.to = m.to, m.from
		}
		list = append(list, m)
	}
	return list
}

// call begins a function, with a frame behind the caller's.
func (t *thread) call(callee *function, in, out []transfer) {
	caller := t.frame
	callees := alignUp(caller+uint64(t.fn.frame)+t.extra, uint64(callee.align))
	if !t.grow(callees+uint64(callee.frame), callee) {
		return
	}
	for _, m := range in {
		copy(t.local[callees+m.to:callees+m.to+uint64(m.size)], t.local[caller+m.from:])
	}
	back := make([]transfer, 0, len(out))
	for _, m := range out {
		back = append(back, transfer{callees + m.from, caller + m.to, m.size})
	}
	base := len(t.regs) - int(t.fn.slots)
	t.stack = append(t.stack, activation{t.fn, t.pc, base, caller, t.extra, back})
	t.frame, t.extra = callees, 0
	t.regs = append(t.regs, make([]uint64, callee.slots)...)
	t.enter(callee, base+int(t.stack[len(t.stack)-1].fn.slots))
	if callee.slots > manySlots {
		t.rest()
	}
}

// manySlots are so many registers that to fill them takes long.
const manySlots = 1 << 10

// grow makes room for the frame of a function that is called, which ends at need.
// Registers count as much as local memory, which they are saved in on the GPU.
func (t *thread) grow(need uint64, callee *function) bool {
	used := 8*uint64(len(t.regs)+int(callee.slots)) + callSize*uint64(len(t.stack)+1)
	if need+used > maxStack || need > t.block.launch.stack {
		t.fail(StackOverflow, 0)
		return false
	}
	if have := uint64(len(t.local)); need > have {
		t.local = append(t.local, make([]byte, alignUp(need, 16)-have)...)
	}
	return true
}
