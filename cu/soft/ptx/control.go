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

// A barrierWait is what a thread waits for.
type barrierWait struct {
	id, count uint64 // count 0 is all threads
}

// barriers is how many a block has.
const barriers = 16

// barrier builds bar.sync and barrier.sync.
func barrier(b *builder, o *opcode) error {
	o.take("cta")
	o.take("aligned")
	if !o.take("sync") {
		return o.refuse("not but .sync")
	}
	id, err := b.p.operand(b)
	if err != nil {
		return err
	}
	i := inst{run: runBarrier, b: -1}
	if id.what == isInteger && id.bits >= barriers {
		return o.refuse("there are %d barriers", barriers)
	}
	if i.a, err = b.source(id, tu32); err != nil {
		return err
	}
	if b.p.accept(",") {
		n, err := b.p.operand(b)
		if err != nil {
			return err
		}
		if i.b, err = b.source(n, tu32); err != nil {
			return err
		}
	}
	b.emit(i)
	return nil
}

func runBarrier(t *thread, i *inst) {
	w := barrierWait{id: t.r[i.a] % barriers} // more bits than that the GPU does not look at
	if i.b >= 0 {
		w.count = uint64(uint32(t.r[i.b]))
	}
	t.barrier, t.state = w, waiting
}

// fence builds membar and fence.
func fence(b *builder, o *opcode) error {
	o.take("sc", "acq_rel", "acquire", "release")
	if !o.take("gl", "cta", "cluster", "gpu", "sys") {
		return o.refuse("without a scope")
	}
	b.emit(inst{run: runFence})
	return nil
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
	name, err := b.p.word()
	if err != nil {
		return err
	}
	if b.p.accept(",") {
		if err := b.p.expect("("); err != nil {
			return err
		}
		if params, err = b.list(); err != nil {
			return err
		}
	}
	at, f := len(b.f.code), b.f
	b.emit(inst{})
	b.p.later = append(b.p.later, func() error {
		callee := b.p.m.functions[name]
		if callee == nil || callee.declared || callee.entry {
			return errorf(o.line, "there is no function %s", name)
		}
		in, err := transfers(o, params, callee.params, true)
		if err != nil {
			return err
		}
		out, err := transfers(o, result, callee.result, false)
		f.code[at].run = runCall(callee, in, out)
		caller := b.p.m.functions[f.name] // which a declaration may have made before
		caller.calls = append(caller.calls, callee)
		return err
	})
	return nil
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

func runCall(callee *function, in, out []transfer) run {
	return func(t *thread, _ *inst) {
		caller := t.frame
		callees := alignUp(caller+uint64(t.fn.frame), uint64(callee.align))
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
		t.stack = append(t.stack, activation{t.fn, t.pc, base, caller, back})
		t.frame = callees
		t.regs = append(t.regs, make([]uint64, callee.slots)...)
		t.enter(callee, base+int(t.stack[len(t.stack)-1].fn.slots))
	}
}

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
