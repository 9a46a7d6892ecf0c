package ptx

import "slices"

// barriers is how many barriers a block has.
const barriers = 16

// A barrierState is the threads that have come to a barrier so far.
type barrierState struct {
	want    uint64 // threads; 0 is all of the block
	came    bool
	times   []uint32 // how often each thread of the block came
	yes     uint64   // threads with a predicate that is true, of all that brought one
	brought uint64
}

// reset makes it a barrier to which no thread has come.
func (s *barrierState) reset() {
	clear(s.times)
	*s = barrierState{times: s.times}
}

// A barrierWait is what a thread waits for.
type barrierWait struct {
	id   uint64
	slot int32 // for the result, or -1
	give func(yes, brought uint64) uint64
}

// barrierResults are the results of a barrier with a predicate, for each thread.
var barrierResults = map[string]func(yes, brought uint64) uint64{
	"popc": func(yes, _ uint64) uint64 { return yes },
	"and":  func(yes, brought uint64) uint64 { return boolBits(yes == brought) },
	"or":   func(yes, _ uint64) uint64 { return boolBits(yes != 0) },
}

// barrier builds bar and barrier.
func barrier(b *builder, o *opcode) {
	if o.take("warp") {
		warpBarrier(b, o)
		return
	}
	o.take("cta")
	o.take("aligned")
	switch {
	case o.take("sync"):
		b.barrierSync(o, barrierWait{slot: -1}, false)
	case o.take("arrive"):
		b.barrierSync(o, barrierWait{slot: -1}, true)
	case o.take("red"):
		b.barrierReduce(o)
	default:
		panic(o.refuse("in this form"))
	}
}

// barrierReduce takes the result of a barrier that counts.
func (b *builder) barrierReduce(o *opcode) {
	give, ok := oneOf(o, barrierResults)
	t := o.typ(0)
	o.refuseIf(!ok || t != tu32 && t != tpred, "with .%s", t)
	d := b.p.operand(b)
	w := barrierWait{give: give}
	w.slot = b.target(d, t)
	b.p.expect(",")
	b.barrierSync(o, w, false)
}

// barrierSync takes the number of a barrier, how many threads it is for, and what
// a thread brings, and emits the instruction.
func (b *builder) barrierSync(o *opcode, w barrierWait, arrive bool) {
	id := b.p.operand(b)
	o.refuseIf(id.what == isInteger && id.bits >= barriers, "there are %d barriers", barriers)
	i := inst{b: -1, c: -1, a: b.source(id, tu32)}
	rest := b.rest()
	not := false
	if w.give != nil {
		o.refuseIf(len(rest) == 0, "without a predicate")
		last := rest[len(rest)-1]
		rest = rest[:len(rest)-1]
		not, last.not = last.not, false
		i.c = b.source(last, tpred)
	}
	switch {
	case len(rest) > 1, len(rest) == 0 && arrive:
		panic(o.refuse("with %d operands", len(rest)+1))
	case len(rest) == 1:
		i.b = b.source(rest[0], tu32)
	}
	i.run = w.run(not, arrive)
	b.emit(i)
}

// rest takes the remaining operands, each behind a comma.
func (b *builder) rest() (list []operand) {
	for b.p.accept(",") {
		o := b.p.operand(b)
		list = append(list, o)
	}
	return list
}

// run brings the thread to a barrier.
func (w barrierWait) run(not, arrive bool) run {
	return func(t *thread, i *inst) {
		w := w
		w.id = t.r[i.a] % barriers // more bits than that the GPU does not look at
		s := &t.block.barrier[w.id]
		if s.want = 0; i.b >= 0 {
			s.want = uint64(uint32(t.r[i.b]))
		}
		if s.came = true; s.times == nil {
			s.times = make([]uint32, len(t.block.threads))
		}
		s.times[t.index]++
		if w.give != nil {
			s.brought++
			s.yes += boolBits((t.r[i.c] != 0) != not)
		}
		if !arrive {
			t.barrier, t.state = w, waiting
		}
		if s.want > 0 {
			t.block.release(w.id)
		}
	}
}

// complete reports whether all threads of a barrier have come. As on a GPU, a
// warp counts whole: its threads that have ended, or never were, came as often as
// any other.
func (s *barrierState) complete(b *block) bool {
	if !s.came {
		return false
	}
	here, missing := uint64(0), false
	for first := 0; first < len(b.threads); first += warpSize {
		times := s.times[first:min(first+warpSize, len(b.threads))]
		most := slices.Max(times)
		for k, n := range times {
			if b.threads[first+k].state == done {
				n = most
			} else if n == 0 {
				missing = true
			}
			here += uint64(n)
		}
		here += uint64(most) * uint64(warpSize-len(times))
	}
	if s.want == 0 {
		return !missing
	}
	return here >= s.want
}

// release lets the threads of a complete barrier go on.
func (b *block) release(id uint64) (released bool) {
	s := &b.barrier[id]
	if !s.complete(b) {
		return false
	}
	for i := range b.threads {
		t := &b.threads[i]
		if t.state != waiting || t.barrier.id != id {
			continue
		}
		t.state, released = running, true
		if w := &t.barrier; w.slot >= 0 {
			t.r[w.slot] = w.give(s.yes, s.brought)
		}
	}
	s.reset()
	return released
}

// releaseAll is release for all barriers: they do not wait for threads that have
// ended.
func (b *block) releaseAll() (released bool) {
	for id := range uint64(barriers) {
		if b.release(id) {
			released = true
		}
	}
	return released
}
