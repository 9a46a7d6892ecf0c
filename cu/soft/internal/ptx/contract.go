package ptx

import (
	"maps"
	"math"
	"slices"
	"strings"
)

// A loose instruction is one that says nothing of its rounding, a product or a sum
// of floats: where one product goes into one sum, the assembler makes them one
// instruction that rounds once, unless nothing is to be optimised. Copies and
// changes of sign that pass a product on unrounded are loose, too.
type loose struct {
	step      int
	at        int // in the code
	name      string
	typ       typ
	flushes   bool
	saturates bool // it is a sum
}

// loosely records an instruction that may become part of another.
func (b *builder) loosely(o *opcode, at int) {
	if b.p.debug || !looseNames[o.name] || len(b.f.code) != at+1 {
		return
	}
	form, saturates := strings.CutPrefix(strings.Replace(strings.TrimPrefix(o.text, o.name), ".ftz", "", 1), ".sat")
	t, ok := looseTypes[form]
	l := loose{len(b.steps), at, o.name, t, strings.Contains(o.text, ".ftz"), saturates}
	if !ok || saturates && !l.sum() {
		return
	}
	if b.loose == nil {
		b.loose = map[int]loose{}
	}
	b.loose[l.step] = l
	b.products, b.sums = b.products || o.name == "mul", b.sums || l.sum()
}

var looseNames = map[string]bool{"mul": true, "add": true, "sub": true, "neg": true, "mov": true}

// looseTypes are what follows the name of such an instruction, and perhaps .ftz and .sat.
var looseTypes = map[string]typ{".f32": tf32, ".f64": tf64, ".f16": tf16, ".f16x2": tf16x2, ".bf16": tbf16, ".bf16x2": tbfx2}

// A factor is a product that goes into sums alone.
type factor struct {
	loose
	sums     []use
	taken    int      // how many of them have it
	operands [2]int32 // where sums find them
}

// sum reports whether it is one, passes whether it hands on what it reads, and takes
// whether a product of this kind can become part of it.
func (l loose) sum() bool          { return l.name == "add" || l.name == "sub" }
func (l loose) passes() bool       { return (l.name == "neg" || l.name == "mov") && !l.flushes }
func (l loose) takes(p loose) bool { return l.typ == p.typ && (l.flushes == p.flushes || p.passes()) }

// contract makes one of products and sums, within basic blocks of the code that
// nothing jumps into or out of.
func (b *builder) contract() {
	if !b.products || !b.sums {
		return
	}
	v := b.newValues()
	if v == nil {
		return
	}
	for n := range v.blocks {
		b.contractIn(v.factors(n))
	}
}

// contractIn does it in one basic block. First come products that go into one sum; then those
// that go into several, as long as none of these has taken another. A sum prefers what
// it names first.
func (b *builder) contractIn(factors []factor) {
	slices.Reverse(factors)
	bySum := map[int][]*factor{}
	for k := range factors {
		for _, u := range factors[k].sums {
			bySum[u.step] = append(bySum[u.step], &factors[k])
		}
	}
	sums, taken := slices.Sorted(maps.Keys(bySum)), map[int]*factor{}
	for _, several := range []bool{false, true} {
		for _, sum := range sums {
			if taken[sum] == nil {
				b.choose(bySum[sum], sum, several, taken)
			}
		}
	}
	c := copies{b: b}
	for k := range factors { // in the order of the code
		if f := &factors[k]; f.taken > 0 && c.operands(f) {
			for _, u := range f.sums {
				if taken[u.step] == f {
					b.fuse(b.loose[u.step], f, u)
				}
			}
		}
	}
}

// choose finds the product that a sum takes, of those with one sum or those with several.
func (b *builder) choose(factors []*factor, sum int, several bool, taken map[int]*factor) {
	i := &b.f.code[b.loose[sum].at]
	for _, slot := range []int32{i.a, i.b} {
		for _, f := range factors {
			free := func(u use) bool { return taken[u.step] == nil || taken[u.step] == f }
			reads := func(u use) bool { return u.step == sum && u.slot == slot }
			if len(f.sums) > 1 == several && slices.ContainsFunc(f.sums, reads) && f.all(free) {
				taken[sum] = f
				f.taken++
				return
			}
		}
	}
}

func (f *factor) all(is func(use) bool) bool {
	return !slices.ContainsFunc(f.sums, func(u use) bool { return !is(u) })
}

// fuse makes one of a sum and a product.
func (b *builder) fuse(sum loose, f *factor, u use) {
	i := &b.f.code[sum.at]
	other, product, added := i.b, u.minus, sum.name == "sub" // the last two: negated
	if u.slot != i.a {
		other, product, added = i.a, product != added, false
	}
	i.run, i.a, i.b, i.c = fusedRun(sum, product, added), f.operands[0], f.operands[1], other
}

// copies are registers for operands of products that change before the last sum.
type copies struct {
	b    *builder
	free []int // where in the code each pair is read last
	pair [][2]int32
}

// maxCopies bounds how many pairs a basic block has.
const maxCopies = 256

// operands finds out where sums find those of a product: where that does, or in registers
// to which it copies them. It reports whether there are such.
func (c *copies) operands(f *factor) bool {
	p, last := &c.b.f.code[f.at], 0
	for _, u := range f.sums {
		last = max(last, c.b.loose[u.step].at)
	}
	f.operands = [2]int32{p.a, p.b}
	if !within(c.b.writesTo[p.a], f.at, last) && !within(c.b.writesTo[p.b], f.at, last) {
		return true
	}
	k := slices.IndexFunc(c.free, func(at int) bool { return at < f.at })
	if k < 0 {
		if k = len(c.pair); k == maxCopies || !c.b.spare(k) {
			return false
		}
		c.pair, c.free = append(c.pair, c.b.copies[k]), append(c.free, 0)
	}
	c.free[k], f.operands = last, c.pair[k]
	multiply, to := p.run, f.operands
	p.run = func(t *thread, i *inst) {
		t.r[to[0]], t.r[to[1]] = t.r[i.a], t.r[i.b]
		multiply(t, i)
	}
	return true
}

// spare sees to it that the function has so many pairs, and one more. All basic blocks
// use the same.
func (b *builder) spare(n int) bool {
	if n < len(b.copies) {
		return true
	}
	if b.f.slots > maxSlots-2*maxCopies {
		return false // what comes next needs some, too
	}
	b.copies = append(b.copies, [2]int32{b.f.slots, b.f.slots + 1})
	b.f.slots += 2
	return true
}

// within reports whether one of the numbers, which are sorted, is at least from and
// less than to.
func within(sorted []int, from, to int) bool {
	n, _ := slices.BinarySearch(sorted, from)
	return n < len(sorted) && sorted[n] < to
}

// fusedRun is ±a b ± c, rounded once.
func fusedRun(l loose, minusProduct, minusOther bool) run {
	a, c := boolBits(minusProduct), boolBits(minusOther)
	if l.typ == tf64 {
		return func(t *thread, i *inst) {
			x, y, z := t.r[i.a]^a<<63, t.r[i.b], t.r[i.c]^c<<63
			t.r[i.d] = number64(math.FMA(f64(x), f64(y), f64(z)), x, y, z)
		}
	}
	if l.typ.small() || l.saturates {
		return l.bitwiseFused(minusProduct, minusOther)
	}
	f := fma32
	if l.flushes {
		f = flushed(f, operations["fma"])
	}
	return func(t *thread, i *inst) {
		x, y, z := f32(t.r[i.a]^a<<31), f32(t.r[i.b]), f32(t.r[i.c]^c<<31)
		t.r[i.d] = number32(f(x, y, z))
	}
}

// bitwiseFused is fusedRun for 16 bits, for pairs of them, and for what saturates.
func (l loose) bitwiseFused(minusProduct, minusOther bool) run {
	of := l.typ.format()
	fma := operations["fma"].rounded(of, toEven, l.flushes)
	if l.saturates {
		fma = fma.saturated(of)
	}
	a, c := boolBits(minusProduct)*of.sign(), boolBits(minusOther)*of.sign()
	f := pure(func(x, y, z uint64) uint64 { return fma(x^a, y, z^c) })
	if l.typ.pair() {
		f = f.halves()
	}
	return f.run()
}
