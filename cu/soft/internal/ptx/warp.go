package ptx

import (
	"math/bits"
)

// A convergence point is an instruction that threads of a warp run together: each thread brings
// its operands, and none goes on before all that are expected have arrived.
type convergence struct {
	what string // threads converge at points with the same
	open bool   // no mask says which threads: those that have arrived, once no other can
	step bool   // laggards go first
	act  func(here []*thread)

	patience int // for how many turns threads wait at an open one
}

// wait returns the run of the instruction: the thread waits at the convergence point.
func (m *convergence) wait(mask func(t *thread, i *inst) uint32) run {
	return func(t *thread, i *inst) {
		t.point, t.inst, t.state, t.patience = m, i, converging, m.patience
		t.mask = mask(t, i)
	}
}

// openPatience is for how many turns threads at an open point wait for others of
// the warp that still run: these may spin until the first go on.
const openPatience = 64

// lane returns the thread's number in its warp.
func (t *thread) lane() uint { return uint(t.index % warpSize) }

// converge runs the convergence points of a warp that are complete, and reports whether there were any.
func converge(warp []thread) (went bool) {
	alive, runs, waits := census(warp)
	last := laggard(warp)
	for left := waits; left != 0; {
		first := &warp[bits.TrailingZeros32(left)]
		var here []*thread
		var there uint32
		for k := range warp {
			if t := &warp[k]; left>>k&1 != 0 && t.joins(first) {
				here, there = append(here, t), there|1<<k
			}
		}
		left &^= there
		want := first.mask & alive
		if first.point.open {
			want = there
			early := runs != 0 || first.point.step && last.behind(first)
			if first.patience--; early && first.patience > 0 {
				continue
			}
		}
		if want&^there != 0 {
			continue
		}
		for _, t := range here {
			t.state = running
		}
		first.point.act(here)
		went = true
	}
	return went
}

// census returns three sets of threads of a warp, as bits: those that have not ended, those that run, and those that
// wait at a convergence point.
func census(warp []thread) (alive, runs, waits uint32) {
	for k := range warp {
		bit := uint32(1) << k
		switch warp[k].state {
		case done:
			continue
		case running:
			runs |= bit
		case converging:
			waits |= bit
		}
		alive |= bit
	}
	return alive, runs, waits
}

// joins reports whether t is at the same convergence point as another thread. Without a mask that
// is the same instruction, to which the same calls have led. A mask says itself who
// comes, from wherever: there it is an instruction alike, with the same mask.
func (t *thread) joins(other *thread) bool {
	if t.point.open {
		return t.inst == other.inst && t.calledAlike(other) && (!t.point.step || t.inStepWith(other))
	}
	return t.point.what == other.point.what && t.mask == other.mask
}

// calledAlike reports whether two threads will return to the same places. The innermost
// calls are compared first, because they differ most often.
func (t *thread) calledAlike(other *thread) bool {
	if len(t.stack) != len(other.stack) {
		return false
	}
	for k := len(t.stack) - 1; k >= 0; k-- {
		if a, b := &t.stack[k], &other.stack[k]; a.pc != b.pc || a.fn != b.fn {
			return false
		}
	}
	return true
}

// assemble emits an instruction that threads of a warp run together: those in the mask that a slot
// holds, or with slot -1 those that have arrived.
func (b *builder) assemble(o *opcode, i inst, mask int32, act func(here []*thread)) {
	m := &convergence{what: o.text, open: mask < 0, patience: openPatience, act: act}
	if mask < 0 && b.p.m.goesInStep() {
		m.step, m.patience = true, stepPatience
	}
	i.run = m.wait(func(t *thread, _ *inst) uint32 {
		if mask < 0 {
			return 0
		}
		return uint32(t.r[mask])
	})
	b.emit(i)
}

// comma takes a comma and an operand that is read.
func (b *builder) comma(t typ) int32 {
	b.p.expect(",")
	return b.source(b.p.operand(b), t)
}

// syncMask takes the mask of the threads that converge, the last operand of an
// instruction with .sync, and -1 of one without.
func (b *builder) syncMask(sync bool) int32 {
	if !sync {
		return -1
	}
	return b.comma(tu32)
}

// activeMask builds activemask, which returns the lanes that have arrived.
func activeMask(b *builder, o *opcode) {
	t := o.only(tb32)
	args := b.arguments(1)
	i := inst{d: b.target(args[0], t)}
	b.assemble(o, i, -1, func(here []*thread) { give(here, lanes(here)) })
}

// lanes returns the mask of some threads.
func lanes(here []*thread) (mask uint64) {
	for _, t := range here {
		mask |= 1 << t.lane()
	}
	return mask
}

// give gives every thread the same result.
func give(here []*thread, v uint64) {
	for _, t := range here {
		t.r[t.inst.d] = v
	}
}

// votes are the results of a vote, given the lanes that vote yes and all lanes.
var votes = map[string]func(yes, all uint64) uint64{
	"all":    func(yes, all uint64) uint64 { return boolBits(yes == all) },
	"any":    func(yes, _ uint64) uint64 { return boolBits(yes != 0) },
	"uni":    func(yes, all uint64) uint64 { return boolBits(yes == all || yes == 0) },
	"ballot": func(yes, _ uint64) uint64 { return yes },
}

// vote builds vote.
func vote(b *builder, o *opcode) {
	sync := o.take("sync")
	ballot := o.has("ballot")
	how, ok := oneOf(o, votes)
	t := o.typ(0)
	if want := map[bool]typ{true: tb32, false: tpred}[ballot]; !ok || t != want {
		panic(o.refuse("with .%s", t))
	}
	args := b.arguments(2)
	i := inst{d: b.target(args[0], t)}
	i.imm = boolBits(args[1].not) // threads that converge may differ in this
	args[1].not = false
	i.a = b.source(args[1], tpred)
	b.assemble(o, i, b.syncMask(sync), func(here []*thread) {
		var yes uint64
		for _, t := range here {
			if t.r[t.inst.a] != t.inst.imm {
				yes |= 1 << t.lane()
			}
		}
		give(here, how(yes, lanes(here)))
	})
}

// match builds match.any and match.all, which return the lanes with the same value.
func match(b *builder, o *opcode) {
	sync, all := o.take("sync"), o.take("all")
	o.refuseIf(!sync || !all && !o.take("any"), "in this form")
	t := o.only(tb32, tb64)
	args := b.arguments(2)
	i := b.withPredicate(args[0], tb32)
	i.a = b.source(args[1], t)
	mask := b.syncMask(true)
	act := matchAny
	if all {
		act = matchAll
	}
	b.assemble(o, i, mask, act)
}

// withPredicate takes a target that may have a predicate behind it, d|p: the
// predicate's slot is c, a spare one if it is not there.
func (b *builder) withPredicate(target operand, t typ) (i inst) {
	if pair := target.pair; pair != nil {
		i.c = b.target(*pair, tpred)
		target.pair = nil
	} else {
		i.c = b.newSlot()
	}
	i.d = b.target(target, t)
	return i
}

func matchAny(here []*thread) {
	groups := map[uint64]uint64{}
	for _, t := range here {
		groups[t.r[t.inst.a]] |= 1 << t.lane()
	}
	for _, t := range here {
		t.r[t.inst.d] = groups[t.r[t.inst.a]]
	}
}

func matchAll(here []*thread) {
	same := true
	for _, t := range here {
		same = same && t.r[t.inst.a] == here[0].r[here[0].inst.a]
	}
	for _, t := range here {
		t.r[t.inst.c] = boolBits(same)
	}
	if !same {
		give(here, 0)
		return
	}
	give(here, lanes(here))
}

// reduce builds redux.sync.
func reduce(b *builder, o *opcode) {
	o.refuseIf(!o.take("sync"), "without .sync")
	t := o.typ(0)
	f := updateOf(o.takeOne("add", "min", "max", "and", "or", "xor"), t)
	o.refuseIf(f == nil || t.size != 4 || t.kind == float, "with .%s", t)
	args := b.arguments(2)
	i := inst{d: b.target(args[0], t), a: b.source(args[1], t)}
	b.assemble(o, i, b.syncMask(true), func(here []*thread) {
		v := here[0].r[here[0].inst.a]
		for _, t := range here[1:] {
			v = f(v, t.r[t.inst.a], 0)
		}
		give(here, v)
	})
}

// elect builds elect.sync, which elects the first thread of those in the mask.
func elect(b *builder, o *opcode) {
	o.refuseIf(!o.take("sync"), "without .sync")
	args := b.arguments(1)
	o.refuseIf(args[0].pair == nil, "without a predicate")
	i := b.withPredicate(args[0], tb32)
	b.assemble(o, i, b.syncMask(true), func(here []*thread) {
		for k, t := range here {
			t.r[t.inst.c] = boolBits(k == 0)
		}
		give(here, uint64(here[0].lane()))
	})
}

// warpBarrier builds bar.warp.sync, once bar and warp are taken.
func warpBarrier(b *builder, o *opcode) {
	o.refuseIf(!o.take("sync"), "without .sync")
	args := b.arguments(1)
	mask := b.source(args[0], tu32)
	b.assemble(o, inst{}, mask, func([]*thread) {})
}

// A shuffleFrom says which lane's value another gets, and whether that is within
// bounds: between the first and the last lane of its segment, where up has the
// first for both.
type shuffleFrom func(lane, by, first, last int) (from int, ok bool)

var shuffles = map[string]shuffleFrom{
	"up":   func(lane, by, _, last int) (int, bool) { return lane - by, lane-by >= last },
	"down": func(lane, by, _, last int) (int, bool) { return lane + by, lane+by <= last },
	"bfly": func(lane, by, _, last int) (int, bool) { return lane ^ by, lane^by <= last },
	"idx":  func(_, by, first, last int) (int, bool) { return first | by, first|by <= last },
}

// shuffle builds shfl.
func shuffle(b *builder, o *opcode) {
	sync := o.take("sync")
	idx := o.has("idx")
	how, ok := oneOf(o, shuffles)
	t := o.typ(0)
	o.refuseIf(!ok || t != tb32, "with .%s", t)
	args := b.arguments(4)
	i := b.withPredicate(args[0], t)
	i.a = b.source(args[1], t)
	i.b = b.source(args[2], tu32)
	c := b.source(args[3], tu32)
	i.vec = []int32{c}
	b.assemble(o, i, b.syncMask(sync), func(here []*thread) { how.act(idx, here) })
}

// act moves the values. From a lane that is not there comes nothing, for which a
// thread keeps its own.
func (how shuffleFrom) act(idx bool, here []*thread) {
	var values [warpSize]uint64
	var there uint32
	for _, t := range here {
		values[t.lane()] = t.r[t.inst.a]
		there |= 1 << t.lane()
	}
	for _, t := range here {
		i, lane := t.inst, int(t.lane())
		c := int(t.r[i.vec[0]])
		segment := c >> 8 & 31
		by, first := int(t.r[i.b]&31), lane&segment
		if idx {
			by &^= segment
		}
		from, ok := how(lane, by, first, first|c&31&^segment)
		if !ok || from < 0 || from >= warpSize {
			from, ok = lane, false
		}
		v := values[lane]
		if there>>from&1 != 0 {
			v = values[from]
		}
		t.r[i.d], t.r[i.c] = v, boolBits(ok)
	}
}
