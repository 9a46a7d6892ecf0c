package ptx

import (
	"math"
	"slices"
	"strings"
)

// A loose instruction is one that says nothing of its rounding, a product or a sum
// of floats: where one product goes into one sum, the assembler makes them one
// instruction that rounds once, unless the module is for debugging.
type loose struct {
	at      int // in the code
	name    string
	typ     typ
	flushes bool
}

// loosely notes an instruction that may become part of another.
func (b *builder) loosely(o *opcode, at int) {
	product := o.name == "mul"
	if b.p.debug || !product && o.name != "add" && o.name != "sub" || len(b.f.code) != at+1 {
		return
	}
	if t, ok := looseTypes[strings.TrimPrefix(o.text, o.name)]; ok {
		b.loose = append(b.loose, loose{at, o.name, t, strings.Contains(o.text, ".ftz")})
	}
}

// looseTypes are what follows the name of such an instruction.
var looseTypes = map[string]typ{
	".f32": tf32, ".ftz.f32": tf32, ".f64": tf64, ".f16": tf16, ".ftz.f16": tf16, ".f16x2": tf16x2, ".ftz.f16x2": tf16x2,
	".bf16": tbf16, ".bf16x2": tbfx2,
}

// contract makes one of products and sums, within stretches of the code that
// nothing jumps into or out of.
func (b *builder) contract() {
	if len(b.loose) == 0 {
		return
	}
	ends := b.ends()
	products := map[int32]loose{} // by where they are, if they are used once
	for _, l := range b.loose {
		i := &b.f.code[l.at]
		if l.name == "mul" {
			if b.uses[i.d] == 1 && len(b.writes[i.d]) == 1 && i.guard < 0 {
				products[i.d] = l
			}
			continue
		}
		first, second := b.product(products, ends, l, i.a), b.product(products, ends, l, i.b)
		minus := l.name == "sub"
		switch {
		case first != nil:
			i.run, i.a, i.b, i.c = fusedRun(l, false, minus), first.a, first.b, i.b
		case second != nil:
			i.run, i.a, i.b, i.c = fusedRun(l, minus, false), second.a, second.b, i.a
		}
	}
}

// product finds the one that a sum takes from a slot, where its operands still are
// what they were.
func (b *builder) product(products map[int32]loose, ends []int, sum loose, slot int32) *inst {
	p, ok := products[slot]
	if !ok || p.typ != sum.typ || p.flushes != sum.flushes || p.at >= sum.at {
		return nil
	}
	i := &b.f.code[p.at]
	if within(ends, p.at+1, sum.at+1) || within(b.writes[i.a], p.at, sum.at) || within(b.writes[i.b], p.at, sum.at) {
		return nil
	}
	return i
}

// within reports whether one of the numbers, which are sorted, is at least from and
// less than to.
func within(sorted []int, from, to int) bool {
	n, _ := slices.BinarySearch(sorted, from)
	return n < len(sorted) && sorted[n] < to
}

// ends is where stretches of code begin, sorted: at labels, and behind jumps.
func (b *builder) ends() []int {
	ends := slices.Clone(b.labelled)
	for _, j := range b.jumps {
		ends = append(ends, j.inst+1)
	}
	for _, at := range b.leaves {
		ends = append(ends, at+1)
	}
	slices.Sort(ends)
	return ends
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
	if l.typ.small() {
		return l.smallFused(minusProduct, minusOther)
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

// smallFused is fusedRun for 16 bits, and for pairs of them.
func (l loose) smallFused(minusProduct, minusOther bool) run {
	of := l.typ.layout()
	fma := operations["fma"].rounded(of, toEven, l.flushes)
	a, c := boolBits(minusProduct)*of.sign(), boolBits(minusOther)*of.sign()
	f := pure(func(x, y, z uint64) uint64 { return fma(x^a, y, z^c) })
	if l.typ.pair() {
		f = f.halves()
	}
	return f.run()
}
