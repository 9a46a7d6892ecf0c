package ptx

import "slices"

// A ranker puts the instructions of a function in an order in which each loop is in one
// piece, from where it begins on, and before what comes after it: Bourdoncle's weak
// topological order.
type ranker struct {
	b      *builder
	next   [][]int32 // instructions behind each
	places []place
	ranked int32
	cut    []bool  // the beginnings of loops: ways back to them no longer count
	within []int32 // which call of parts an instruction is for
	calls  int32

	number, low []int32 // Tarjan's, from 1 on; closed is past all
	open        []int32
	under       []visit
}

// A visit is an instruction whose ways on are followed.
type visit struct {
	node int32
	next int // way
}

const (
	maxLoops = 16      // how deeply loops are looked for within others
	maxWays  = 1 << 20 // of all jumps by tables in functions that are ranked
	closed   = 1 << 30
)

// rank sets the places of a function's instructions, once its jumps are known.
func (b *builder) rank() {
	n := len(b.f.code)
	r := &ranker{b: b, next: make([][]int32, n), places: make([]place, n), cut: make([]bool, n), within: make([]int32, n),
		number: make([]int32, n), low: make([]int32, n)}
	all := make([]int32, n)
	for k := range all {
		all[k] = int32(k)
		if k > 0 {
			r.next[k-1] = all[k : k+1 : k+1]
		}
	}
	for _, k := range b.final {
		r.next[k] = nil
	}
	for _, j := range b.jumps {
		r.next[j.inst] = append(r.next[j.inst], b.f.code[j.inst].to)
	}
	for _, at := range b.leaves {
		to := b.f.code[at].vec
		b.p.ways += len(to)
		failIf(b.p.ways > maxWays, b.line, "jumps by tables have more than %d ways to go", maxWays)
		r.next[at] = append(r.next[at], to...)
	}
	r.order(all, nil)
	b.f.places = r.places
}

// order ranks some instructions, those of one loop or all, and returns the registers
// that count the laps of loops among them.
func (r *ranker) order(nodes, loops []int32) (laps []int32) {
	if len(loops) == maxLoops {
		for _, n := range nodes {
			r.place(n, loops)
		}
		return nil
	}
	for _, part := range slices.Backward(r.parts(nodes)) {
		first := part[0]
		if len(part) == 1 && (r.cut[first] || !slices.Contains(r.next[first], first)) {
			r.place(first, loops)
			continue
		}
		lap := r.b.newSlot()
		r.cut[first] = true
		inner := r.order(part, append(slices.Clone(loops), lap))
		if within(r.b.labelled, int(first), int(first)+1) { // what stands there does nothing so far
			i := &r.b.f.code[first]
			i.run, i.d, i.vec = runLap, lap, inner
		}
		laps = append(append(laps, lap), inner...)
	}
	return laps
}

// place ranks the next instruction.
func (r *ranker) place(n int32, loops []int32) {
	r.places[n] = place{r.ranked, loops}
	r.ranked++
}

// parts finds the loops among some instructions, and those that are in none, in parts
// of their own: Tarjan's strongly connected components, those behind others first,
// each with where it is come to in front.
func (r *ranker) parts(nodes []int32) (parts [][]int32) {
	r.calls++
	for _, n := range nodes {
		r.within[n], r.number[n] = r.calls, 0
	}
	came := int32(0)
	for _, n := range nodes {
		if r.number[n] != 0 {
			continue
		}
		r.enter(n, &came)
		for len(r.under) > 0 {
			if part := r.follow(&came); part != nil {
				parts = append(parts, part)
			}
		}
	}
	return parts
}

// enter comes to an instruction for the first time.
func (r *ranker) enter(n int32, came *int32) {
	*came++
	r.number[n], r.low[n] = *came, *came
	r.open, r.under = append(r.open, n), append(r.under, visit{node: n})
}

// follow takes the next way on from the instruction that was come to last, or leaves
// it, which may complete a part.
func (r *ranker) follow(came *int32) (part []int32) {
	v := &r.under[len(r.under)-1]
	at := v.node
	if v.next < len(r.next[at]) {
		to := r.next[at][v.next]
		v.next++
		switch {
		case r.within[to] != r.calls || r.cut[to]:
		case r.number[to] == 0:
			r.enter(to, came)
		default:
			r.low[at] = min(r.low[at], r.number[to])
		}
		return nil
	}
	r.under = r.under[:len(r.under)-1]
	if len(r.under) > 0 {
		from := r.under[len(r.under)-1].node
		r.low[from] = min(r.low[from], r.low[at])
	}
	if r.low[at] != r.number[at] {
		return nil
	}
	begin := len(r.open) - 1
	for r.open[begin] != at {
		begin--
	}
	part = slices.Clone(r.open[begin:])
	r.open = r.open[:begin]
	for _, n := range part {
		r.number[n] = closed
	}
	return part
}
