package ptx

import (
	"iter"
	"slices"
	"sort"
	"strings"
)

// A step is one instruction of the text, with the registers that it reads and writes.
type step struct {
	first         int // where its code begins
	reads, writes []int32
	guarded       bool
	pure          bool // what it writes is all that it does
	parts         bool // the assembler makes jumps of it
}

func newStep(b *builder, o *opcode, first int, guarded bool) step {
	pure := resultOnly[o.name] && !strings.Contains(o.text, ".cc")
	s := step{first, b.read, b.written, guarded, pure, o.parts() || guarded && !pure}
	b.read, b.written = nil, nil
	return s
}

// parts reports whether the assembler makes jumps of an instruction, or of one that it
// calls. It was seen for these.
func (o *opcode) parts() bool {
	switch o.name {
	case "call", "membar", "fence":
		return true
	case "div", "rem", "sqrt", "rcp":
		wide := strings.HasSuffix(o.text, "64") && !strings.Contains(o.text, ".f64")
		return wide || strings.Contains(o.text, ".r")
	}
	return false
}

// values finds out which step reads what another has written, within basic blocks of the
// code that nothing jumps into or out of, as the assembler does: what is written to one
// register at two places are two values, and what only useless steps read is not read.
type values struct {
	b      *builder
	blocks []basicBlock
	known  bool          // what is read behind each
	bits   []uint64      // of all sets
	idle   map[int]bool  // jumps over nothing, by where they are
	index  map[int32]int // of registers in sets
	words  int           // of a set
}

// A basicBlock is a range of steps that nothing jumps into or out of.
type basicBlock struct {
	from, to int
	next     []int
	before   []int    // basic blocks that go on here
	out      []uint64 // the registers that are read behind it
}

// Bounds, for functions larger than anybody writes. Values beyond them are not known,
// or not fused.
const (
	maxRounds = 4       // of the search for jumps over nothing
	maxLinks  = 1 << 16 // ways to go by tables, in a module
	maxUses   = 64      // sums that one product goes into
)

// maxSets bounds the memory of all sets, and maxEffort how many words and steps are
// looked at: both go with how long the function is.
func (v *values) maxSets() int   { return 1<<14 + 32*len(v.b.steps) }
func (v *values) maxEffort() int { return 1<<20 + 1000*len(v.b.steps) }

// A reading records the uses of a value.
type reading struct {
	others bool  // besides sums that are near
	sums   []use // in the order of reading, the last first
}

// add records one more sum. One that reads a value twice does not take it for a product.
func (r *reading) add(u use) {
	twice := slices.ContainsFunc(r.sums, func(v use) bool { return v.step == u.step })
	if r.others = r.others || twice || len(r.sums) == maxUses; !r.others {
		r.sums = append(r.sums, u)
	}
}

// A use is a sum that reads a value.
type use struct {
	step  int
	slot  int32 // where it reads it
	minus bool  // negated on the way there
}

// resultOnly are instructions that only give a result, unless their modifiers say more.
var resultOnly = map[string]bool{
	"add": true, "sub": true, "mul": true, "mad": true, "fma": true, "div": true, "rem": true, "min": true, "max": true,
	"neg": true, "abs": true, "sqrt": true, "rcp": true, "rsqrt": true, "sin": true, "cos": true, "lg2": true, "ex2": true,
	"tanh": true, "copysign": true, "testp": true, "setp": true, "set": true, "selp": true, "slct": true, "mov": true,
	"cvt": true, "and": true, "or": true, "xor": true, "not": true, "cnot": true, "shl": true, "shr": true, "shf": true,
	"lop3": true, "prmt": true, "popc": true, "clz": true, "brev": true, "bfe": true, "bfi": true, "bfind": true,
	"mul24": true, "mad24": true, "sad": true, "szext": true, "bmsk": true,
}

// newValues is nil for a function that is too large.
func (b *builder) newValues() *values {
	for _, at := range b.leaves {
		b.p.links += len(b.f.code[at].vec)
	}
	if b.p.links > maxLinks {
		return nil
	}
	v := &values{b: b, idle: map[int]bool{}, index: map[int32]int{}}
	for _, s := range b.steps {
		for _, slot := range append(slices.Clip(s.reads), s.writes...) {
			if _, ok := v.index[slot]; !ok {
				v.index[slot] = len(v.index)
			}
		}
	}
	v.words = (len(v.index) + 63) / 64
	for range maxRounds {
		v.divide()
		v.known = len(v.blocks)*v.words <= v.maxSets() && v.follow()
		if !v.known || !v.skipJumps() {
			break
		}
	}
	return v
}

// divide finds the basic blocks, and where each goes on.
func (v *values) divide() {
	b := v.b
	v.blocks = nil
	begins := v.begins()
	blockOf := make([]int, len(b.steps)+1)
	for k := range b.steps {
		if k == 0 || begins[k] {
			v.blocks = append(v.blocks, basicBlock{from: k})
		}
		blockOf[k] = len(v.blocks) - 1
		v.blocks[len(v.blocks)-1].to = k + 1
	}
	ended := make([]bool, len(v.blocks))
	for _, at := range b.final {
		ended[blockOf[b.stepAt(at)]] = true
	}
	for from, to := range v.ways() {
		if k := b.stepAt(to); k < len(b.steps) {
			v.link(blockOf[b.stepAt(from)], blockOf[k])
		}
	}
	for n := range len(v.blocks) - 1 {
		if !ended[n] {
			v.link(n, n+1)
		}
	}
}

// begins are the steps that basic blocks begin with: where is jumped to, and behind what
// jumps, ends, or is made jumps of.
func (v *values) begins() map[int]bool {
	b, begins := v.b, map[int]bool{}
	for _, at := range b.final {
		begins[b.stepAt(at+1)] = true
	}
	for from, to := range v.ways() {
		begins[b.stepAt(from+1)], begins[b.stepAt(to)] = true, true
	}
	for k, s := range b.steps {
		if s.parts && !v.idle[s.first] {
			begins[k+1] = true
		}
	}
	return begins
}

// ways are all jumps but idle ones, from one place in the code to another.
func (v *values) ways() iter.Seq2[int, int] {
	b := v.b
	return func(yield func(from, to int) bool) {
		for _, j := range b.jumps {
			if !v.idle[j.inst] && !yield(j.inst, int(b.f.code[j.inst].to)) {
				return
			}
		}
		for _, at := range b.leaves {
			for _, to := range b.f.code[at].vec {
				if !yield(at, int(to)) {
					return
				}
			}
		}
	}
}

// skipJumps finds jumps with a guard over what is of no use, which the assembler leaves
// out, and reports whether there are more than before.
func (v *values) skipJumps() bool {
	b, before := v.b, len(v.idle)
	useful := make([]int, len(b.steps)+1) // how many there are up to a step
	live := make([]uint64, v.words)
	for n := range v.blocks {
		s := &v.blocks[n]
		copy(live, s.out)
		for k := s.to - 1; k >= s.from; k-- {
			useful[k+1] = int(boolBits(v.back(k, live)))
		}
	}
	for k := range b.steps {
		useful[k+1] += useful[k]
	}
	for _, j := range b.jumps {
		from, to := b.stepAt(j.inst), b.stepAt(int(b.f.code[j.inst].to))
		if from < to && useful[to] == useful[from+1] && b.steps[from].guarded {
			v.idle[j.inst] = true
		}
	}
	return len(v.idle) > before
}

func (v *values) link(from, to int) {
	v.blocks[from].next = append(v.blocks[from].next, to)
	v.blocks[to].before = append(v.blocks[to].before, from)
}

// stepAt returns the first step whose code does not begin before a place in the code, or how
// many there are.
func (b *builder) stepAt(at int) int {
	return sort.Search(len(b.steps), func(k int) bool { return b.steps[k].first >= at })
}

// follow finds what is read behind each basic block, by steps that are of use: more and more,
// until nothing is added. It reports whether that was soon.
func (v *values) follow() bool {
	effort := 0
	need := (2*len(v.blocks) + 1) * v.words
	bits := slices.Grow(v.bits[:0], need)[:need]
	clear(bits)
	v.bits = bits
	set := func(n int) []uint64 { return bits[n*v.words : (n+1)*v.words : (n+1)*v.words] }
	ahead := func(n int) []uint64 { return set(len(v.blocks) + n) } // read from its beginning on
	work, waits := make([]int, len(v.blocks)), make([]bool, len(v.blocks))
	for n := range v.blocks {
		v.blocks[n].out, work[n], waits[n] = set(n), n, true
	}
	live := set(2 * len(v.blocks))
	for len(work) > 0 {
		n := work[len(work)-1]
		work, waits[n] = work[:len(work)-1], false
		s := &v.blocks[n]
		if effort += v.words*(len(s.next)+2) + s.to - s.from; effort > v.maxEffort() {
			return false
		}
		for _, to := range s.next {
			unite(s.out, ahead(to))
		}
		copy(live, s.out)
		for k := s.to - 1; k >= s.from; k-- {
			v.back(k, live)
		}
		if !unite(ahead(n), live) {
			continue
		}
		for _, from := range s.before {
			if !waits[from] {
				work, waits[from] = append(work, from), true
			}
		}
	}
	return true
}

// unite adds a set to another, and reports whether that has more now.
func unite(to, from []uint64) (more bool) {
	for w := range to {
		more = more || from[w]&^to[w] != 0
		to[w] |= from[w]
	}
	return more
}

// back goes from what is read behind a step to what is read from it on, and reports
// whether the step is of use.
func (v *values) back(k int, live []uint64) bool {
	b := v.b
	s := &b.steps[k]
	use := !s.pure && !v.idle[s.first]
	for _, slot := range s.writes {
		n := v.index[slot]
		use = use || live[n/64]>>(n%64)&1 != 0
	}
	if !use {
		return false
	}
	if !s.guarded {
		for _, slot := range s.writes {
			n := v.index[slot]
			live[n/64] &^= 1 << (n % 64)
		}
	}
	for _, slot := range s.reads {
		n := v.index[slot]
		live[n/64] |= 1 << (n % 64)
	}
	return true
}

// factors are the products of a basic block that go into sums there and nowhere else, the
// last first.
func (v *values) factors(n int) (found []factor) {
	b, s := v.b, &v.blocks[n]
	readings := map[int32]reading{}
	var live []uint64
	if v.known {
		live = slices.Clone(s.out)
	}
	of := func(slot int32) reading { // of the value that it holds there
		r, ok := readings[slot]
		i := v.index[slot]
		r.others = r.others || !ok && (!v.known || s.out[i/64]>>(i%64)&1 != 0)
		return r
	}
	for k := s.to - 1; k >= s.from; k-- {
		if v.known && !v.back(k, live) {
			continue
		}
		var value reading
		for _, slot := range b.steps[k].writes {
			value = of(slot)
			readings[slot] = reading{others: b.steps[k].guarded}
		}
		l := b.loose[k]
		alone := !value.others && !b.steps[k].guarded && !slices.ContainsFunc(value.sums, func(u use) bool { return !b.loose[u.step].takes(l) })
		if alone && l.name == "mul" && len(value.sums) > 0 {
			found = append(found, factor{loose: l, sums: value.sums})
		}
		for _, slot := range b.steps[k].reads {
			r := of(slot)
			switch {
			case alone && l.passes():
				for _, u := range value.sums {
					r.add(use{u.step, u.slot, u.minus != (l.name == "neg")})
				}
			case l.sum():
				r.add(use{k, slot, false})
			default:
				r.others = true
			}
			readings[slot] = r
		}
	}
	return found
}
