package ptx

// branch builds bra.
func branch(b *builder, o *opcode) {
	o.take("uni")
	label := b.p.word()
	b.jumps = append(b.jumps, jump{len(b.f.code), label, b.scope, o.line})
	b.emit(inst{run: runBranch})
}

// fence builds membar and fence.
func fence(b *builder, o *opcode) {
	if o.name == "fence" && o.take("proxy") { // all memory is seen in one way
		o.refuseIf(!o.take("alias", "async", "async.global", "async.shared::cta", "async.generic"), "of this proxy")
		o.take("global", "shared::cta")
		b.emit(inst{run: runFence})
		return
	}
	o.take("mbarrier_init")
	o.take("sc", "acq_rel", "acquire", "release")
	o.refuseIf(!o.take("gl", "cta", "cluster", "gpu", "sys"), "without a scope")
	b.emit(inst{run: runFence})
}

// A jump is a branch to a label that may come later.
type jump struct {
	inst  int
	label string
	scope *scope
	line  int
}

// A labelTable is where brx may jump, for all that use it.
type labelTable struct {
	labels []string
	scope  *scope
	to     []int32
	line   int // of the first that uses it
}

// land resolves the jumps, and the tables of those that have some.
func (b *builder) land() {
	for _, j := range b.jumps {
		b.f.code[j.inst].to = j.scope.place(j.label, j.line)
	}
	for _, t := range b.tables {
		for k, label := range t.labels {
			t.to[k] = t.scope.place(label, t.line)
		}
	}
}

// place finds a label's place in the code, in the innermost scope that has it.
func (s *scope) place(label string, line int) int32 {
	for ; s != nil; s = s.outer {
		if to, ok := s.labels[label]; ok {
			return to
		}
	}
	panic(errorf(line, "there is no label %s", label))
}

// branchIndexed builds brx.idx: a jump to one of several labels.
func branchIndexed(b *builder, o *opcode) {
	o.take("uni")
	o.refuseIf(!o.take("idx"), "without .idx")
	index := b.p.operand(b)
	i := inst{a: b.source(index, tu32)}
	b.p.expect(",")
	name := b.p.word()
	i.vec = b.table(name, o.line)
	b.leaves = append(b.leaves, len(b.f.code))
	i.run = func(t *thread, i *inst) {
		n := uint64(uint32(t.r[i.a]))
		if n >= uint64(len(i.vec)) {
			t.fail(BadJump, n)
			return
		}
		t.pc = i.vec[n]
	}
	b.emit(i)
}

// table finds what a table's labels will be, and has them resolved.
func (b *builder) table(name string, line int) []int32 {
	var t *labelTable
	for s := b.scope; s != nil && t == nil; s = s.outer {
		t = s.tables[name]
	}
	failIf(t == nil, line, "there are no branch targets %s", name)
	if t.to == nil {
		t.to, t.line = make([]int32, len(t.labels)), line
		b.tables = append(b.tables, t)
	}
	return t.to
}
