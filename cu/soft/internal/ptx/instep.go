package ptx

import "strings"

// Old programs count on the threads of a warp running in step: what one thread has written by a
// volatile access is there when the others read it. Before sm_70 that holds. Later architectures do
// not promise it, but do so where nothing has made threads diverge, and GPUs keep code for old
// architectures in step (Volta Tuning Guide). Here the threads of a warp converge before volatile
// accesses, and in code for old architectures before shuffles and votes without .sync. Laggards go
// first, so that threads that have diverged converge again where their ways do.

// firstIndependent is the first architecture whose threads are independent.
const firstIndependent = 70

// stepPatience is for how many turns threads wait for laggards in code for old architectures. Longer
// waits are of threads that spin until a thread ahead of them goes on, which would hang.
const stepPatience = 1 << 12

// goesInStep reports whether the warps of the module's architecture run in step.
func (m *Module) goesInStep() bool {
	return m.Architecture() != 0 && m.Architecture() < firstIndependent
}

// stepsHere reports whether the body that begins now has instructions before which
// threads converge to be in step.
func (p *parser) stepsHere() bool {
	old := p.m.goesInStep()
	read, depth := p.lexer, 0 // a copy, which reads on
	for k := 0; ; k++ {
		var t token
		if k < p.have {
			t = p.ahead[k]
		} else if next, ok := read.next(); ok {
			t = next
		} else {
			return false
		}
		switch {
		case t.is("{"):
			depth++
		case t.is("}"):
			if depth--; depth == 0 {
				return false
			}
		case strings.Contains(t.text, ".volatile"), old && t.joinsLoosely():
			return true
		}
	}
}

// joinsLoosely reports whether the token is the opcode of an instruction that threads of a warp run
// together, without a mask.
func (t token) joinsLoosely() bool {
	name, rest, _ := strings.Cut(t.text, ".")
	return (name == "activemask" || name == "shfl" || name == "vote") && !strings.HasPrefix(rest, "sync")
}

// keepStep makes the threads of a warp converge before a volatile access that others see.
func (b *builder) keepStep(o *opcode, a access) {
	if !b.inStep || !a.volatile || a.space == local || a.space == param {
		return
	}
	m := &convergence{what: o.text, open: true, step: true, patience: openPatience, act: func([]*thread) {}}
	if b.p.m.goesInStep() {
		m.patience = stepPatience
	}
	wait := m.wait(func(*thread, *inst) uint32 { return 0 })
	b.emit(inst{run: func(t *thread, i *inst) {
		if !t.alone() {
			wait(t, i)
		}
	}})
}

// alone reports whether all other threads of the warp have ended or wait for the block.
func (t *thread) alone() bool {
	first := t.index &^ (warpSize - 1)
	warp := t.block.threads[first:min(first+warpSize, len(t.block.threads))]
	for k := range warp {
		if s := warp[k].state; (s == running || s == converging) && first+k != t.index {
			return false
		}
	}
	return true
}

// A place is where an instruction stands among the others of its function: threads come
// to one of lower rank first, and go around the loops that it is in, whose laps are
// counted in registers.
type place struct {
	rank  int32
	loops []int32 // outermost first
}

// laggard returns the thread that is farthest behind, of those that run in step.
func laggard(warp []thread) (last *thread) {
	for k := range warp {
		t := &warp[k]
		if t.state == converging && t.point.step && (last == nil || t.behind(last)) {
			last = t
		}
	}
	return last
}

// behind reports whether t has yet to come to where another thread is, as far as can
// be told: where they are in different functions, where these were called.
func (t *thread) behind(o *thread) bool {
	for depth := range min(len(t.stack), len(o.stack)) + 1 {
		f, at, mine := t.active(depth)
		g, to, its := o.active(depth)
		if f != g {
			return false
		}
		if n := f.compare(at, to, mine, its); n != 0 {
			return n < 0
		}
	}
	return false
}

// inStepWith reports whether neither of two threads is behind the other.
func (t *thread) inStepWith(o *thread) bool { return !t.behind(o) && !o.behind(t) }

// active returns the function that is active at a depth, which instruction it is at, and
// its registers.
func (t *thread) active(depth int) (f *function, at int32, r []uint64) {
	if depth < len(t.stack) {
		a := &t.stack[depth]
		return a.fn, a.pc - 1, t.regs[a.base:]
	}
	return t.fn, t.pc - 1, t.r
}

// compare says which of two threads in one function is behind: in the outermost loop
// that both are in and have gone around a different number of times, or else by rank.
func (f *function) compare(at, to int32, mine, its []uint64) int {
	if f.places == nil {
		return int(at) - int(to)
	}
	p, q := f.places[at], f.places[to]
	for k := range min(len(p.loops), len(q.loops)) {
		l := p.loops[k]
		switch {
		case l != q.loops[k]:
			return int(p.rank) - int(q.rank)
		case mine[l] < its[l]:
			return -1
		case mine[l] > its[l]:
			return 1
		}
	}
	return int(p.rank) - int(q.rank)
}

// runLap counts one lap of a loop; those of loops within it begin anew.
func runLap(t *thread, i *inst) {
	t.r[i.d]++
	for _, l := range i.vec {
		t.r[l] = 0
	}
}
