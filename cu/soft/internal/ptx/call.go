package ptx

// functionWindow is where functions have their addresses, which nothing else has.
const (
	functionWindow = uint64(1) << 61
	functionStep   = 16
)

// address is what a pointer to the function holds.
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
func (p *parser) alias() error {
	line := p.line()
	name, err := p.word()
	if err != nil {
		return err
	}
	if err := p.expect(","); err != nil {
		return err
	}
	of, err := p.word()
	if err != nil {
		return err
	}
	p.aliases = append(p.aliases, func() error {
		f, g := p.m.functions[name], p.m.functions[of]
		if f == nil || g == nil || !f.declared || g.declared || f.entry || g.entry {
			return errorf(line, "%s cannot stand for %s", name, of)
		}
		f.alias, f.calls = g, []*function{g}
		return nil
	})
	return p.expect(";")
}

// actual is the function that f stands for, or itself.
func (f *function) actual() *function {
	if f.alias != nil {
		return f.alias
	}
	return f
}

// A signature is what a function takes and gives.
type signature struct{ result, params []parameter }

// prototype takes .callprototype, behind its name and that word.
func (b *builder) prototype() (s signature, err error) {
	p := b.p
	if p.accept("(") {
		if s.result, err = p.result(); err != nil {
			return s, err
		}
	}
	if _, err := p.word(); err != nil { // _
		return s, err
	}
	if p.accept("(") {
		if s.params, err = p.parameters(); err != nil {
			return s, err
		}
	}
	p.accept(".noreturn")
	return s, p.expect(";")
}

// targets takes the names behind .calltargets or .branchtargets.
func (b *builder) targets() (names []string, err error) {
	for {
		name, err := b.p.word()
		if err != nil {
			return nil, err
		}
		names = append(names, name)
		if !b.p.accept(",") {
			return names, b.p.expect(";")
		}
	}
}

// named takes what a label names that is no place in the code, and reports whether
// it does.
func (b *builder) named(label string) (ok bool, err error) {
	s := b.scope
	switch {
	case b.p.accept(".callprototype"):
		s.prototypes[label], err = b.prototype()
	case b.p.accept(".calltargets"):
		names, err := b.targets()
		if err != nil {
			return true, err
		}
		f := b.p.m.functions[names[0]]
		if f == nil {
			return true, errorf(b.p.line(), "there is no function %s", names[0])
		}
		s.prototypes[label] = signature{f.result, f.params}
	case b.p.accept(".branchtargets"):
		t := &labelTable{scope: s}
		t.labels, err = b.targets()
		s.tables[label] = t
	default:
		return false, nil
	}
	return true, err
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
func call(b *builder, o *opcode) error {
	o.take("uni")
	var result, params []operand
	var err error
	if b.p.accept("(") {
		if result, err = b.list(); err != nil {
			return err
		}
		if err := b.p.expect(","); err != nil {
			return err
		}
	}
	c := callee{reg: -1}
	if c.name, err = b.p.word(); err != nil {
		return err
	}
	if b.p.accept(",") && b.p.accept("(") {
		if params, err = b.list(); err != nil {
			return err
		}
		b.p.accept(",")
	}
	r, indirect, err := b.register(c.name)
	if err != nil {
		return err
	}
	if indirect {
		if r.typ.size != 8 || r.typ.kind == float {
			return errorf(o.line, "%s cannot hold the address of a function", c.name)
		}
		c.reg = r.slot
		b.read = append(b.read, r.slot)
		return b.callIndirect(o, c, result, params)
	}
	return b.callDirect(o, c.name, result, params)
}

// callDirect emits the call of a function that may not be known yet.
func (b *builder) callDirect(o *opcode, name string, result, params []operand) error {
	at, f := len(b.f.code), b.f
	b.emit(inst{})
	b.p.later = append(b.p.later, func() error {
		callee := b.p.m.functions[name]
		if callee == nil || callee.entry {
			return errorf(o.line, "there is no function %s", name)
		}
		callee = callee.actual()
		in, err := transfers(o, params, callee.params, true)
		if err != nil {
			return err
		}
		out, err := transfers(o, result, callee.result, false)
		if err != nil {
			return err
		}
		if callee.declared {
			f.code[at].run, err = native(o, callee, in, out)
			return err
		}
		f.code[at].run = func(t *thread, _ *inst) { t.call(callee, in, out) }
		caller := b.p.m.functions[f.name] // which a declaration may have made before
		caller.calls = append(caller.calls, callee)
		return nil
	})
	return nil
}

// callIndirect emits the call of whatever function has an address then, if that is
// one of the signature that is given.
func (b *builder) callIndirect(o *opcode, c callee, result, params []operand) error {
	name, err := b.p.word()
	if err != nil {
		return err
	}
	found := false
	for s := b.scope; s != nil && !found; s = s.outer {
		c.signature, found = s.prototypes[name]
	}
	if !found {
		return errorf(o.line, "there is no prototype %s", name)
	}
	in, err := transfers(o, params, c.signature.params, true)
	if err != nil {
		return err
	}
	out, err := transfers(o, result, c.signature.result, false)
	if err != nil {
		return err
	}
	f := b.f
	b.p.later = append(b.p.later, func() error {
		caller := b.p.m.functions[f.name]
		if n := len(caller.calls); n == 0 || caller.calls[n-1] != b.p.m.pointed {
			caller.calls = append(caller.calls, b.p.m.pointed)
		}
		return nil
	})
	b.emit(inst{a: c.reg, run: func(t *thread, i *inst) { t.callAt(t.r[i.a], c.signature, in, out) }})
	return nil
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
	return alikeParameters(s.result, f.result) && alikeParameters(s.params, f.params)
}

func alikeParameters(a, b []parameter) bool {
	if len(a) != len(b) {
		return false
	}
	for k := range a {
		if a[k].size != b[k].size {
			return false
		}
	}
	return true
}

// list takes operands up to a closing parenthesis.
func (b *builder) list() (list []operand, err error) {
	for !b.p.accept(")") {
		if len(list) > 0 {
			if err := b.p.expect(","); err != nil {
				return nil, err
			}
		}
		o, err := b.p.operand(b)
		if err != nil {
			return nil, err
		}
		list = append(list, o)
	}
	return list, nil
}

// transfers says how parameters are copied. Places are within the frames.
func transfers(o *opcode, args []operand, params []parameter, in bool) ([]transfer, error) {
	if len(args) != len(params) {
		return nil, errorf(o.line, "a call with %d parameters of a function that has %d", len(args), len(params))
	}
	var list []transfer
	for i, a := range args {
		if a.what != isSymbol || a.v == nil || a.v.space != param || !a.v.framed || a.bits != 0 || a.not || a.pair != nil {
			return nil, errorf(o.line, "only .param variables can be passed")
		}
		p := params[i]
		if a.v.size < p.size {
			return nil, errorf(o.line, "%s has %d bytes, and the function takes %d", a.v.name, a.v.size, p.size)
		}
		m := transfer{a.v.at, p.at, p.size}
		if !in {
			m.from, m.to = m.to, m.from
		}
		list = append(list, m)
	}
	return list, nil
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
