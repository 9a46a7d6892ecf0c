package ptx

import "math"

// Types that only instructions have; registers of bits hold them.
const (
	bfloat kind = iota + predicate + 1
	tfloat
	halfPair
	bfloatPair
	unsignedPair
	signedPair
	e4m3Pair
	e5m2Pair
)

var (
	tf16   = typeNames["f16"]
	tbf16  = typ{bfloat, 2}
	ttf32  = typ{tfloat, 4}
	tf16x2 = typ{halfPair, 4}
	tbfx2  = typ{bfloatPair, 4}
	tu16x2 = typ{unsignedPair, 4}
	ts16x2 = typ{signedPair, 4}
	te4m3  = typ{e4m3Pair, 2}
	te5m2  = typ{e5m2Pair, 2}
)

// packedNames are those types as opcodes call them.
var packedNames = map[string]typ{
	"bf16": tbf16, "tf32": ttf32, "f16x2": tf16x2, "bf16x2": tbfx2, "u16x2": tu16x2, "s16x2": ts16x2,
	"e4m3x2": te4m3, "e5m2x2": te5m2,
}

// opcodeType finds a type by its name in an opcode.
func opcodeType(name string) (t typ, ok bool) {
	if t, ok = typeNames[name]; !ok {
		t, ok = packedNames[name]
	}
	return t, ok
}

// plain returns the type of a register that holds t.
func (t typ) plain() typ {
	if t.kind > predicate {
		return typ{bitsKind, t.size}
	}
	return t
}

// format returns how a float type's numbers lie in bits, those of one half if it is a
// pair; nil if it is none.
func (t typ) format() *floatFormat {
	switch t {
	case tf16, tf16x2:
		return half
	case tbf16, tbfx2:
		return brain
	case tf32:
		return single
	case tf64:
		return double
	}
	return nil
}

// pair reports whether the type is two of 16 bits.
func (t typ) pair() bool {
	switch t.kind {
	case halfPair, bfloatPair, unsignedPair, signedPair:
		return true
	}
	return false
}

// small reports whether the type is a float of 16 bits, or a pair of them.
func (t typ) small() bool {
	return t.size == 2 && t.format() != nil || t.kind == halfPair || t.kind == bfloatPair
}

// A pure function of up to three operands is what an instruction does.
type pure func(a, b, c uint64) uint64

// run makes a run of it.
func (f pure) run() run {
	return func(t *thread, i *inst) { t.r[i.d] = f(t.r[i.a], t.r[i.b], t.r[i.c]) }
}

// halves does it to both halves of 32 bits.
func (f pure) halves() pure {
	return func(a, b, c uint64) uint64 {
		low := f(a&0xffff, b&0xffff, c&0xffff)
		return low&0xffff | f(a>>16&0xffff, b>>16&0xffff, c>>16&0xffff)&0xffff<<16
	}
}

// emitPure emits a function of n operands, all of one type, of both halves if that
// is a pair.
func (b *builder) emitPure(f pure, t typ, n int) {
	if t.pair() {
		f = f.halves()
	}
	types := []typ{t.plain()}
	for range n {
		types = append(types, t.plain())
	}
	b.emitTyped(f.run(), types...)
}

// pairHalves are the types of the halves of pairs of integers.
var pairHalves = map[kind]typ{unsignedPair: tu16, signedPair: ts16}

// byPair builds add, min and max of pairs of integers; others are left to the
// builder that follows.
func byPair(other build) build {
	return func(b *builder, o *opcode) {
		t := o.typ(0)
		half, ok := pairHalves[t.kind]
		if !ok {
			other(b, o)
			return
		}
		b.emitPure(o.intPure(half), t, 2)
	}
}

// intPure is an operation on integers of up to 32 bits. With .relu negative results of
// min and max are zeros.
func (o *opcode) intPure(t typ) pure {
	f, least := intOps[o.name], int64(math.MinInt64)
	if t.kind == signed && o.name != "add" && o.take("relu") {
		least = 0
	}
	return func(a, b, _ uint64) uint64 { return uint64(max(least, f(t.number(a), t.number(b)))) & t.mask() }
}
