package ptx

import (
	"maps"
	"math"
	"slices"
	"strings"
)

// A loose instruction is one that says nothing of its rounding, a product or a sum
// of floats: where one product goes into one sum, the assembler makes them one
// instruction that rounds once, unless nothing is to be optimised. What a product
// passes unrounded is loose, too: copies and changes of its sign.
type loose struct {
	step      int
	at        int // in the code
	name      string
	typ       typ
	flushes   bool
	saturates bool // it is a sum
}

// loosely notes an instruction that may become part of another.
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
	kept     bool
	operands [2]int32 // where sums find them
}

// sum reports whether it is one, passes whether it hands on what it reads, and takes
// whether a product of this kind can become part of it.
func (l loose) sum() bool          { return l.name == "add" || l.name == "sub" }
func (l loose) passes() bool       { return (l.name == "neg" || l.name == "mov") && !l.flushes }
func (l loose) takes(p loose) bool { return l.typ == p.typ && (l.flushes == p.flushes || p.passes()) }

// contract makes one of products and sums, within stretches of the code that
// nothing jumps into or out of.
func (b *builder) contract() error {
	if !b.products || !b.sums {
		return nil
	}
	v := b.newValues()
	for n := range v.blocks {
		if err := b.contractIn(v.factors(n)); err != nil {
			return err
		}
	}
	return nil
}

// contractIn does it in one stretch. First come products that go into one sum; then those
// that go into several, as long as none of these has taken another. A sum prefers what
// it names first.
func (b *builder) contractIn(factors []factor) error {
	bySum := map[int][]*factor{}
	for k := range factors {
		for _, u := range factors[k].sums {
			bySum[u.step] = append(bySum[u.step], &factors[k])
		}
	}
	sums, taken := slices.Sorted(maps.Keys(bySum)), map[int]*factor{}
	for _, several := range []bool{false, true} {
		for _, sum := range sums {
			if taken[sum] != nil {
				continue
			}
			for _, slot := range []int32{b.f.code[b.loose[sum].at].a, b.f.code[b.loose[sum].at].b} {
				k := slices.IndexFunc(bySum[sum], func(f *factor) bool {
					return f.into(sum).slot == slot && len(f.sums) > 1 == several && !slices.ContainsFunc(f.sums, func(u use) bool { return taken[u.step] != nil && taken[u.step] != f })
				})
				if k >= 0 {
					taken[sum] = bySum[sum][k]
					break
				}
			}
		}
	}
	for _, sum := range sums {
		if f := taken[sum]; f != nil {
			if err := b.fuse(b.loose[sum], f); err != nil {
				return err
			}
		}
	}
	return nil
}

// into is how a sum reads the product.
func (f *factor) into(sum int) use {
	return f.sums[slices.IndexFunc(f.sums, func(u use) bool { return u.step == sum })]
}

// fuse makes one of a sum and a product.
func (b *builder) fuse(sum loose, f *factor) error {
	if err := b.keep(f); err != nil {
		return err
	}
	i, u := &b.f.code[sum.at], f.into(sum.step)
	other, product, added := i.b, u.minus, sum.name == "sub" // the last two: negated
	if u.slot != i.a {
		other, product, added = i.a, product != added, false
	}
	i.run, i.a, i.b, i.c = fusedRun(sum, product, added), f.operands[0], f.operands[1], other
	return nil
}

// keep finds out where sums find the operands of a product: where that does, or, if they
// change before the last sum, in registers of their own, to which it copies them.
func (b *builder) keep(f *factor) (err error) {
	if f.kept {
		return nil
	}
	f.kept = true
	p, last := &b.f.code[f.at], 0
	for _, u := range f.sums {
		last = max(last, b.loose[u.step].at)
	}
	f.operands = [2]int32{p.a, p.b}
	if !within(b.writesTo[p.a], f.at, last) && !within(b.writesTo[p.b], f.at, last) {
		return nil
	}
	for n := range f.operands {
		if f.operands[n], err = b.newSlot(); err != nil {
			return err
		}
	}
	multiply, to := p.run, f.operands
	p.run = func(t *thread, i *inst) {
		t.r[to[0]], t.r[to[1]] = t.r[i.a], t.r[i.b]
		multiply(t, i)
	}
	return nil
}

// within reports whether one of the numbers, which are sorted, is at least from and
// less than to.
func within(sorted []int, from, to int) bool {
	n, _ := slices.BinarySearch(sorted, from)
	return n < len(sorted) && sorted[n] < to
}

// fusedRun is ±a b ± c, rounded once.
func fusedRun(l loose, minusProduct, minusOther bool) run {
	a, c := uint64(0), uint64(0)
	if minusProduct {
		a = 1
	}
	if minusOther {
		c = 1
	}
	if l.typ == tf64 {
		return func(t *thread, i *inst) {
			x, y, z := t.r[i.a]^a<<63, t.r[i.b], t.r[i.c]^c<<63
			t.r[i.d] = number64(math.FMA(f64(x), f64(y), f64(z)), x, y, z)
		}
	}
	if l.typ.small() || l.saturates {
		return l.bitwiseFused(minusProduct, minusOther)
	}
	f := func(x, y, z float32) float32 { return fma32(x, y, z) }
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
	of := l.typ.layout()
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
