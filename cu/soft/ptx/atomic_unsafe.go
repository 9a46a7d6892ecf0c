package ptx

import (
	"sync/atomic"
	"unsafe"
)

// An update gives what an atomic writes, of what is there and its operands.
type update func(old, a, b uint64) uint64

// updateOf finds an atomic by its name, for a type.
func updateOf(name string, t typ) update {
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

// atomicNames are what the modifiers may say.
var atomicNames = map[string]string{
	"add": "add", "min": "min", "max": "max", "inc": "inc", "dec": "dec",
	"and": "and", "or": "or", "xor": "xor", "exch": "exch", "cas": "cas",
}

// buildAtomic builds atom, and red, which has no result.
func buildAtomic(b *builder, o *opcode) error {
	s, _ := oneOf(o, spaceNames)
	o.takeOrder()
	name, ok := oneOf(o, atomicNames)
	t, err := o.typ(0)
	if err != nil {
		return err
	}
	f := updateOf(name, t)
	if !ok || f == nil || t.size < 4 || o.name == "red" && (name == "exch" || name == "cas") {
		return o.refuse("with .%s", t)
	}
	if s != generic && s != global && s != shared {
		return o.refuse("in this space")
	}
	var i inst
	if i.d, err = b.atomicTarget(o, t); err != nil {
		return err
	}
	operands := 1
	if name == "cas" {
		operands = 2
	}
	return b.atomic(i, access{space: s, typ: t, count: 1}, f, operands)
}

// atomicTarget is where the old value goes, for red nowhere.
func (b *builder) atomicTarget(o *opcode, t typ) (int32, error) {
	if o.name == "red" {
		return b.newSlot()
	}
	d, err := b.p.operand(b)
	if err != nil {
		return 0, err
	}
	slot, err := b.target(d, t)
	if err != nil {
		return 0, err
	}
	return slot, b.p.expect(",")
}

// atomic takes the address and one or two operands, and emits the instruction.
func (b *builder) atomic(i inst, a access, f update, operands int) error {
	args, err := b.arguments(1 + operands)
	if err != nil {
		return err
	}
	var address inst
	if err := b.locate(args[0], &a, &address); err != nil {
		return err
	}
	i.c, i.imm = address.a, address.imm
	for k, s := range []*int32{&i.a, &i.b}[:operands] {
		if *s, err = b.source(args[1+k], a.typ); err != nil {
			return err
		}
	}
	i.run = atomically(a.space, a.typ, f)
	b.emit(i)
	return nil
}

// atomically makes the run of an atomic: other blocks run at the same time.
func atomically(s space, t typ, f update) run {
	if t.size == 4 {
		return func(t *thread, i *inst) {
			m := t.at(s, t.r[i.c]+i.imm, 4, true)
			if m == nil {
				return
			}
			p := (*uint32)(unsafe.Pointer(&m[0]))
			for {
				old := atomic.LoadUint32(p)
				if atomic.CompareAndSwapUint32(p, old, uint32(f(uint64(old), t.r[i.a], t.r[i.b]))) {
					t.r[i.d] = uint64(old)
					return
				}
			}
		}
	}
	return func(t *thread, i *inst) {
		m := t.at(s, t.r[i.c]+i.imm, 8, true)
		if m == nil {
			return
		}
		p := (*uint64)(unsafe.Pointer(&m[0]))
		for {
			old := atomic.LoadUint64(p)
			if atomic.CompareAndSwapUint64(p, old, f(old, t.r[i.a], t.r[i.b])) {
				t.r[i.d] = old
				return
			}
		}
	}
}

// loadWord and storeWord access words of so many bytes at once, which plain code
// does, too, but does not promise.
var loadWord = map[int]func([]byte) uint64{
	4: func(m []byte) uint64 { return uint64(atomic.LoadUint32((*uint32)(unsafe.Pointer(&m[0])))) },
	8: func(m []byte) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&m[0]))) },
}

var storeWord = map[int]func([]byte, uint64){
	4: func(m []byte, v uint64) { atomic.StoreUint32((*uint32)(unsafe.Pointer(&m[0])), uint32(v)) },
	8: func(m []byte, v uint64) { atomic.StoreUint64((*uint64)(unsafe.Pointer(&m[0])), v) },
}
