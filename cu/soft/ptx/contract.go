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
	var t typ
	switch rest, _ := strings.CutPrefix(o.text, o.name); rest {
	case ".f32", ".ftz.f32":
		t = tf32
	case ".f64":
		t = tf64
	default:
		return
	}
	b.loose = append(b.loose, loose{at, o.name, t, strings.Contains(o.text, ".ftz")})
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
	f := func(x, y, z float32) float32 { return fma32(x, y, z) }
	if l.flushes {
		f = flushed(f, operations["fma"])
	}
	return func(t *thread, i *inst) {
		x, y, z := f32(t.r[i.a]^a<<31), f32(t.r[i.b]), f32(t.r[i.c]^c<<31)
		t.r[i.d] = number32(f(x, y, z))
	}
}
