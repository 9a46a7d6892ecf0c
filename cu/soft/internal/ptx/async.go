package ptx

// Copies that a GPU does on the side are done at once here: a wait for them finds
// them done. Bulk copies are refused.

// copyAsync builds cp.async and what waits for it.
func copyAsync(b *builder, o *opcode) {
	if !o.take("async") || o.has("bulk") {
		panic(o.refusal())
	}
	switch {
	case o.take("commit_group"), o.take("wait_all"):
		b.emit(inst{run: runNothing})
	case o.take("wait_group"):
		n := b.p.operand(b)
		failIf(n.what != isInteger, b.line, "a number of groups belongs here")
		b.emit(inst{run: runNothing})
	case o.take("mbarrier"):
		b.copyArrives(o)
	default:
		b.copyToShared(o)
	}
}

// copyToShared takes cp.async [to], [from], size and perhaps how many bytes to
// copy, or whether to copy none: the others become zeros.
func (b *builder) copyToShared(o *opcode) {
	whole := o.take("cg")
	o.refuseIf(!whole && !o.take("ca") || !o.take("shared", "shared::cta") || !o.take("global"), "in this form")
	o.takeHints()
	args := b.arguments(3)
	var to, from inst
	b.locate(args[0], &access{space: shared}, &to)
	b.locate(args[1], &access{space: global}, &from)
	size := args[2].bits
	o.refuseIf(args[2].what != isInteger || size != 16 && (whole || size != 4 && size != 8), "of so many bytes")
	i := inst{a: to.a, b: from.a}
	bytes := func(*thread, *inst) uint64 { return size }
	if b.p.accept(",") {
		bytes = b.copied(&i, size)
	}
	i.run = func(t *thread, i *inst) {
		t.copyToShared(t.r[i.a]+to.imm, t.r[i.b]+from.imm, size, bytes(t, i))
	}
	b.emit(i)
}

// copied takes how many bytes are copied: a number, or a predicate for none.
func (b *builder) copied(i *inst, size uint64) func(*thread, *inst) uint64 {
	o := b.p.operand(b)
	if o.what == isRegister && o.reg.typ.kind == predicate {
		i.c = b.source(o, tpred)
		return func(t *thread, i *inst) uint64 { return pick(t.r[i.c] != 0, 0, size) }
	}
	i.c = b.source(o, tu32)
	return func(t *thread, i *inst) uint64 { return min(t.r[i.c], size) }
}

// copyToShared copies the first bytes, and writes zeros behind them.
func (t *thread) copyToShared(to, from, size, bytes uint64) {
	d := t.at(shared, to, size, true)
	if d == nil {
		return
	}
	if from&(size-1) != 0 {
		t.fail(MisalignedAddress, from)
		return
	}
	clear(d[bytes:size])
	if bytes == 0 {
		return
	}
	if s := t.global(from, bytes, false); s != nil {
		copy(d[:bytes], s)
	}
}

// An mbarrierWord is a barrier in shared memory: how many arrivals it waits for,
// how many it begins with, and how often it was complete. arrive returns the word
// that it found.
type mbarrierWord uint64

const mbarrierBits = 20 // of each number

func newMbarrier(phase, expected, pending uint64) mbarrierWord {
	return mbarrierWord(phase<<(2*mbarrierBits) | expected<<mbarrierBits | pending)
}

func (w mbarrierWord) pending() uint64  { return uint64(w) & (1<<mbarrierBits - 1) }
func (w mbarrierWord) expected() uint64 { return uint64(w) >> mbarrierBits & (1<<mbarrierBits - 1) }
func (w mbarrierWord) phase() uint64    { return uint64(w) >> (2 * mbarrierBits) }

// arrive returns the word after n arrivals; threads that drop out do not arrive
// again.
func (w mbarrierWord) arrive(n uint64, drop bool) mbarrierWord {
	n = min(n, w.pending())
	expected := w.expected()
	if drop {
		expected -= min(n, expected)
	}
	if n < w.pending() {
		return newMbarrier(w.phase(), expected, w.pending()-n)
	}
	return newMbarrier(w.phase()+1, expected, expected)
}

// mbarrier builds the instructions of barriers in shared memory, except those
// that count bytes.
func mbarrier(b *builder, o *opcode) {
	s, ok := oneOf(o, spaceNames)
	o.refuseIf(o.has("expect_tx", "complete_tx") || ok && s != shared, "in this form, which is for %s", asyncCopies)
	o.refuseIf(o.typ(0) != tb64, "without .b64")
	o.takeOrder()
	a := access{space: s, typ: tb64, count: 1}
	switch {
	case o.take("init"):
		b.mbarrierInit(a)
	case o.take("inval"):
		b.onMbarrier(b.p.operand(b), a, inst{}, func(*thread, *inst, mbarrierWord) mbarrierWord { return 0 })
	case o.take("arrive"):
		o.take("noComplete")
		b.mbarrierArrive(a, false)
	case o.take("arrive_drop"):
		o.take("noComplete")
		b.mbarrierArrive(a, true)
	case o.take("test_wait", "try_wait"):
		b.mbarrierTest(a, o.take("parity"))
	case o.take("pending_count"):
		b.emitTyped(func(t *thread, i *inst) { t.r[i.d] = mbarrierWord(t.r[i.a]).pending() }, tu32, tb64)
	default:
		panic(o.refuse("in this form"))
	}
}

// onMbarrier emits an instruction that sets a barrier to a new value.
func (b *builder) onMbarrier(address operand, a access, i inst, f func(t *thread, i *inst, w mbarrierWord) mbarrierWord) {
	b.locate(address, &a, &i)
	get, put := a.getter(tb64), a.setter()
	i.run = func(t *thread, i *inst) {
		if m := t.at(a.space, t.r[i.a]+i.imm, 8, true); m != nil {
			put(m, uint64(f(t, i, mbarrierWord(get(m)))))
		}
	}
	b.emit(i)
}

// mbarrierInit takes an address, and an initial count.
func (b *builder) mbarrierInit(a access) {
	address := b.p.operand(b)
	n := b.comma(tu32)
	b.onMbarrier(address, a, inst{b: n}, func(t *thread, i *inst, _ mbarrierWord) mbarrierWord {
		n := t.r[i.b] & (1<<mbarrierBits - 1)
		return newMbarrier(0, n, n)
	})
}

// mbarrierArrive takes where to put the state, an address, and perhaps a count.
func (b *builder) mbarrierArrive(a access, drop bool) {
	args := b.arguments(2)
	i := inst{d: b.target(args[0], tb64)}
	if b.p.peek().is(",") {
		i.b = b.comma(tu32)
	} else {
		i.b = b.presetSlot(1, nil)
	}
	b.onMbarrier(args[1], a, i, func(t *thread, i *inst, w mbarrierWord) mbarrierWord {
		t.r[i.d] = uint64(w)
		return w.arrive(t.r[i.b], drop)
	})
}

// mbarrierTest takes a predicate, an address, a state or the parity of a phase,
// and perhaps how long to wait, which it ignores. The predicate becomes whether
// the phase is over.
func (b *builder) mbarrierTest(a access, parity bool) {
	args := b.arguments(2)
	i := inst{d: b.target(args[0], tpred)}
	over := func(w mbarrierWord, state uint64) bool { return w.phase() != mbarrierWord(state).phase() }
	t := tb64
	if parity {
		over = func(w mbarrierWord, parity uint64) bool { return w.phase()&1 != parity&1 }
		t = tu32
	}
	i.b = b.comma(t)
	if b.p.peek().is(",") {
		b.comma(tu32)
	}
	b.onMbarrier(args[1], a, i, func(t *thread, i *inst, w mbarrierWord) mbarrierWord {
		t.r[i.d] = boolBits(over(w, t.r[i.b]))
		return w
	})
}

// copyArrives builds an arrival at a barrier once the thread's copies are done.
// The barrier did not count it before if the instruction says .noinc.
func (b *builder) copyArrives(o *opcode) {
	if !o.take("arrive") {
		panic(o.refusal())
	}
	counted := o.take("noinc")
	s, _ := oneOf(o, spaceNames)
	o.refuseIf(o.typ(0) != tb64 || s != generic && s != shared, "without .b64, or in this space")
	address := b.p.operand(b)
	b.onMbarrier(address, access{space: s, typ: tb64, count: 1}, inst{}, func(_ *thread, _ *inst, w mbarrierWord) mbarrierWord {
		if counted {
			return w.arrive(1, false)
		}
		return w
	})
}
