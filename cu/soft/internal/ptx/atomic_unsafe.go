package ptx

import (
	"slices"
	"sync/atomic"
	"unsafe"
)

// updateOf finds an atomic by its name, for a type: a function of the old value and of
// its operands.
func updateOf(name string, t typ) pure {
	mask := t.mask()
	less := func(a, b uint64) bool { return a < b }
	if t.kind == signed {
		shift := 64 - 8*t.size
		less = func(a, b uint64) bool { return int64(a<<shift) < int64(b<<shift) }
	}
	isInt, bitwise := t.kind == unsigned || t.kind == signed, t.kind == bitsKind
	switch {
	case name == "add" && isInt:
		return func(old, a, _ uint64) uint64 { return (old + a) & mask }
	case name == "add" && t == tf32:
		return func(old, a, _ uint64) uint64 { return number32(f32(old) + f32(a)) }
	case name == "add" && t == tf64:
		return func(old, a, _ uint64) uint64 { return number64(f64(old)+f64(a), old, a) }
	case name == "min" && isInt:
		return func(old, a, _ uint64) uint64 { return pick(less(a, old), a, old) }
	case name == "max" && isInt:
		return func(old, a, _ uint64) uint64 { return pick(less(old, a), a, old) }
	case name == "inc" && t == tu32:
		return func(old, a, _ uint64) uint64 { return pick(old >= a, 0, old+1) }
	case name == "dec" && t == tu32:
		return func(old, a, _ uint64) uint64 { return pick(old == 0 || old > a, a, old-1) }
	case name == "and" && bitwise:
		return func(old, a, _ uint64) uint64 { return old & a }
	case name == "or" && bitwise:
		return func(old, a, _ uint64) uint64 { return old | a }
	case name == "xor" && bitwise:
		return func(old, a, _ uint64) uint64 { return old ^ a }
	case name == "exch" && bitwise:
		return func(_, a, _ uint64) uint64 { return a }
	case name == "cas" && bitwise:
		return func(old, a, b uint64) uint64 { return pick(old == a, b, old) }
	}
	return nil
}

func pick(first bool, a, b uint64) uint64 {
	if first {
		return a
	}
	return b
}

// update finds what an atomic does, and on what registers.
func (o *opcode) update(name string) (pure, typ) {
	t := o.typ(0)
	if name != "add" || !t.small() {
		return updateOf(name, t), t
	}
	o.refuseIf(!o.take("noftz"), "without .noftz")
	add := pure(func(old, a, _ uint64) uint64 { return t.format().add(old, a, toEven) })
	if t.pair() {
		add = add.halves()
	}
	return add, typ{bitsKind, t.size}
}

// buildAtomic builds atom, and red, which has no result.
func buildAtomic(b *builder, o *opcode) {
	s, _ := oneOf(o, spaceNames)
	o.takeOrder()
	name := o.takeOne("add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas")
	f, t := o.update(name)
	if f == nil || t.size < 4 && t != tb16 || t == tb16 && name != "cas" && name != "exch" && name != "add" || o.name == "red" && (name == "exch" || name == "cas") {
		panic(o.refuse("with .%s", t))
	}
	o.refuseIf(s != generic && s != global && s != shared, "in this space")
	if n, ok := oneOf(o, vectorCounts); ok {
		o.refuseIf(s == shared || name != "add" || t.size*n > 16 || t.integer() || t.size == 8, "of %d .%s in this space", n, t)
		b.atomicVector(o, access{space: s, typ: t, count: n}, f)
		b.policy(o)
		return
	}
	a := access{space: s, typ: t, count: 1}
	i := inst{d: b.oldValues(o, a)[0]}
	args := b.arguments(2)
	var address inst
	b.locate(args[0], &a, &address)
	i.c, i.imm, i.a = address.a, address.imm, b.source(args[1], t)
	if name == "cas" {
		i.b = b.comma(t)
	}
	i.run = atomically(a.space, t, f)
	b.emit(i)
	b.policy(o)
}

// atomicVector takes the operands of several sums side by side, each of which is
// atomic.
func (b *builder) atomicVector(o *opcode, a access, f pure) {
	old := b.oldValues(o, a)
	args := b.arguments(2)
	var i inst
	b.locate(args[0], &a, &i)
	add := b.vector(args[1], a, b.source)
	one, size := atomically(a.space, a.typ, f), uint64(a.typ.size)
	all := size * uint64(a.count)
	i.run = func(t *thread, i *inst) {
		if t.at(a.space, t.r[i.a]+i.imm, all, true) == nil {
			return
		}
		part := inst{c: i.a, imm: i.imm}
		for k := range old {
			part.d, part.a, part.b = old[k], add[k], add[k]
			one(t, &part)
			part.imm += size
		}
	}
	b.emit(i)
}

// oldValues returns where an instruction puts what was there, red nowhere.
func (b *builder) oldValues(o *opcode, a access) []int32 {
	if o.name == "red" {
		nobody := b.newSlot()
		return slices.Repeat([]int32{nobody}, a.count)
	}
	d := b.p.operand(b)
	old := b.vector(d, a, b.target)
	b.p.expect(",")
	return old
}

// atomically makes the run of an atomic: other blocks run at the same time.
func atomically(s space, t typ, f pure) run {
	if t.size == 2 {
		return atomicallyHalf(s, f)
	}
	if t == tf32 && s != shared {
		return atomicallySingle(s, f)
	}
	if t.size == 4 {
		return swapping(s, 4, atomic.LoadUint32, atomic.CompareAndSwapUint32, f)
	}
	return swapping(s, 8, atomic.LoadUint64, atomic.CompareAndSwapUint64, f)
}

// swapping makes the run of an atomic on a word of a size.
func swapping[W uint32 | uint64](s space, size uint64, load func(*W) W, swap func(p *W, old, next W) bool, f pure) run {
	return func(t *thread, i *inst) {
		m := t.at(s, t.r[i.c]+i.imm, size, true)
		if m == nil {
			return
		}
		p := (*W)(unsafe.Pointer(&m[0]))
		for {
			old := load(p)
			if swap(p, old, W(f(uint64(old), t.r[i.a], t.r[i.b]))) {
				t.r[i.d] = uint64(old)
				return
			}
		}
	}
}

// atomicallySingle adds floats: in device memory, and not in shared memory, those that
// are subnormal are taken for zeros, says the ISA.
func atomicallySingle(s space, f pure) run {
	exact := atomically(s, tb32, f)
	flushes := atomically(s, tb32, func(old, a, _ uint64) uint64 {
		return number32(flush(flush(f32(old)) + flush(f32(a))))
	})
	return func(t *thread, i *inst) {
		if s == generic && t.r[i.c]+i.imm >= sharedWindow {
			exact(t, i)
			return
		}
		flushes(t, i)
	}
}

// loadWord and storeWord access so many bytes at once and in order, which plain code
// does not promise.
var loadWord = map[int]func([]byte) uint64{
	1: func(m []byte) uint64 { return uint64(uint8(loadPart(m))) },
	2: func(m []byte) uint64 { return uint64(uint16(loadPart(m))) },
	4: func(m []byte) uint64 { return uint64(atomic.LoadUint32((*uint32)(unsafe.Pointer(&m[0])))) },
	8: func(m []byte) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&m[0]))) },
}

var storeWord = map[int]func([]byte, uint64){
	1: func(m []byte, v uint64) { storePart(m, uint32(v), 0xff) },
	2: func(m []byte, v uint64) { storePart(m, uint32(v), 0xffff) },
	4: func(m []byte, v uint64) { atomic.StoreUint32((*uint32)(unsafe.Pointer(&m[0])), uint32(v)) },
	8: func(m []byte, v uint64) { atomic.StoreUint64((*uint64)(unsafe.Pointer(&m[0])), v) },
}

// wordOf returns the word of 32 bits that m begins in, and how many bits up. All memory
// begins with a whole one.
func wordOf(m []byte) (p *uint32, shift uint) {
	at := unsafe.Pointer(&m[0])
	in := uintptr(at) & 3
	return (*uint32)(unsafe.Add(at, -int(in))), uint(8 * in)
}

// loadPart has the first bytes of m, up to the end of their word, in its low bits.
func loadPart(m []byte) uint32 {
	p, shift := wordOf(m)
	return atomic.LoadUint32(p) >> shift
}

// storePart changes part of a word, and leaves the rest as it is.
func storePart(m []byte, v, mask uint32) {
	p, shift := wordOf(m)
	for {
		old := atomic.LoadUint32(p)
		if atomic.CompareAndSwapUint32(p, old, old&^(mask<<shift)|v&mask<<shift) {
			return
		}
	}
}

// atomicallyHalf changes half of a word, and leaves the other as it is.
func atomicallyHalf(s space, f pure) run {
	return func(t *thread, i *inst) {
		m := t.at(s, t.r[i.c]+i.imm, 2, true)
		if m == nil {
			return
		}
		p, shift := wordOf(m)
		for {
			word := atomic.LoadUint32(p)
			old := uint64(uint16(word >> shift))
			next := uint32(uint16(f(old, t.r[i.a]&0xffff, t.r[i.b]&0xffff)))
			if atomic.CompareAndSwapUint32(p, word, word&^(0xffff<<shift)|next<<shift) {
				t.r[i.d] = old
				return
			}
		}
	}
}
