package ptx

import (
	"encoding/binary"
)

// A Memory is a device's memory as kernels see it. Several goroutines use it at
// once.
type Memory interface {
	// Piece returns the memory around address as one slice, and where that
	// begins; if write, it must be writable. The slice stays valid until the
	// launch is over, also when the memory has been withdrawn. nil means that
	// there is no memory, or none with such rights.
	Piece(address uint64, write bool) (memory []byte, begin uint64)
}

// A cache is what Memory gave lately, for reading or for writing.
type cache struct {
	pieces [4]piece
	next   uint8 // that is replaced
}

type piece struct {
	memory []byte
	begin  uint64
}

// find returns the memory from an address on, n bytes at least, or nil.
func (c *cache) find(address, n uint64) []byte {
	for i := range c.pieces {
		p := &c.pieces[i]
		if off := address - p.begin; off < uint64(len(p.memory)) && n <= uint64(len(p.memory))-off {
			return p.memory[off:]
		}
	}
	return nil
}

// add keeps a piece in place of the oldest.
func (c *cache) add(p piece) {
	c.pieces[c.next] = p
	c.next = (c.next + 1) % uint8(len(c.pieces))
}

// global returns n bytes of device memory, or fails the thread.
func (t *thread) global(address, n uint64, write bool) []byte {
	if n := t.withdrawals.Load(); n != t.withdrawn {
		t.forget(n)
	}
	c := &t.read
	if write {
		c = &t.write
	}
	if m := c.find(address, n); m != nil {
		return m
	}
	m, begin := t.block.launch.piece(address, write)
	if off := address - begin; m != nil && address >= begin && off < uint64(len(m)) && n <= uint64(len(m))-off {
		c.add(piece{m, begin})
		return m[off:]
	}
	t.fail(IllegalAddress, address)
	t.fault.Global = true
	return nil
}

// forget drops all that t knows of memory, since some was withdrawn. The count was
// read before memory is asked for again, so a later withdrawal shows.
func (t *thread) forget(withdrawn uint64) {
	t.read, t.write, t.withdrawn = cache{}, cache{}, withdrawn
}

// piece returns the device's memory, or what a cooperative grid has.
func (l *launched) piece(address uint64, write bool) ([]byte, uint64) {
	if l.Cooperative && address-workspaceWindow < workspaceSize {
		return l.workspace, workspaceWindow
	}
	if l.Heap != nil && address-heapWindow < heapWindow/2 {
		return l.Heap.piece(address)
	}
	return l.Memory.Piece(address, write)
}

// at returns n bytes at an address within a space, or fails the thread.
func (t *thread) at(s space, address, n uint64, write bool) []byte {
	if address&(n-1) != 0 {
		t.fail(MisalignedAddress, address)
		return nil
	}
	switch s {
	case generic:
		if address < sharedWindow {
			return t.global(address, n, write)
		}
		if address < localWindow {
			return t.within(t.block.shared, address-sharedWindow, address, n)
		}
		if address >= paramWindow && !write {
			return t.within(t.block.launch.Params, address-paramWindow, address, n)
		}
		return t.within(t.local, address-localWindow, address, n)
	case shared:
		return t.within(t.block.shared, wrapped(address), address, n)
	case local:
		return t.within(t.local, wrapped(address), address, n)
	case param: // of an entry; those of functions are local
		if !write {
			return t.within(t.block.launch.Params, address, address, n)
		}
	case constant, global: // what would write constants is refused
		return t.global(address, n, write)
	}
	t.fail(IllegalAddress, address)
	return nil
}

// wrapped returns an address of 32 bits, which a register and an offset together may have
// gone past: an array's index below zero, made good by the offset.
func wrapped(address uint64) uint64 {
	if address>>32 == 1 {
		return address & (1<<32 - 1)
	}
	return address
}

func (t *thread) within(m []byte, off, address, n uint64) []byte {
	if off < uint64(len(m)) && n <= uint64(len(m))-off {
		return m[off:]
	}
	t.fail(IllegalAddress, address)
	return nil
}

// takeOrder takes the modifiers of memory order and scope; here all threads see every access at
// once. It reports whether other threads may access the memory at the same time.
func (o *opcode) takeOrder() (strong bool) {
	o.take("weak")
	strong = o.take("volatile", "relaxed", "acquire", "release", "acq_rel")
	o.take("cta", "cluster", "gpu", "sys")
	return strong
}

// hints are modifiers of loads and stores that are about caches.
var hints = []string{
	"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc",
	"L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
	"L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::64B", "L2::128B", "L2::256B",
}

func (o *opcode) takeHints() {
	for _, h := range hints {
		o.take(h)
	}
}

// vectorCounts are how many values an instruction has.
var vectorCounts = map[string]int{"v2": 2, "v4": 4, "v8": 8}

// An access is what loads and stores have in common.
type access struct {
	space  space
	typ    typ
	count  int  // of a vector
	strong bool // other threads may look at the same time

	volatile bool
}

func (o *opcode) access(b *builder) (a access) {
	a.space, _ = oneOf(o, spaceNames)
	a.volatile = o.has("volatile")
	a.strong = o.takeOrder()
	o.takeHints()
	a.count = 1
	if n, ok := oneOf(o, vectorCounts); ok {
		a.count = n
	}
	a.typ = o.typ(0)
	o.refuseIf(a.typ.kind == predicate || a.typ == typeNames["f16"], "not with .%s", a.typ)
	return a
}

// locate sets where an instruction's address comes from. Parameters of functions
// lie in the frame.
func (b *builder) locate(o operand, a *access, i *inst) {
	failIf(o.what != isAddress, b.line, "an address in brackets belongs here")
	i.imm = 0
	switch {
	case o.base == nil:
		i.a = b.presetSlot(o.bits, nil)
	case o.base.what == isSymbol:
		if v := o.base.v; v != nil {
			failIf(a.space != v.space && (a.space != generic || v.space.window() != 0), b.line, "%s is not in the space of this access", v.name)
			if a.space == param && v.framed {
				a.space = local
			}
		}
		i.a = b.address(*o.base, tu64)
	default:
		if a.space == param && !b.f.entry {
			a.space = local
		}
		i.imm = o.bits
		address := tu64
		if o.base.reg.typ.size == 4 && (a.space == shared || a.space == local) { // these are small
			address = tu32
		}
		i.a = b.source(*o.base, address)
	}
}

// values are those of a vector, or the operand itself.
func (o operand) values() []operand {
	if o.what == isVector {
		return o.vec
	}
	return []operand{o}
}

// vector returns the slots of an operand that is count values.
func (b *builder) vector(o operand, a access, slot func(operand, typ) int32) []int32 {
	list := o.values()
	failIf(len(list) != a.count, b.line, "%d values, where the instruction has %d", len(list), a.count)
	var slots []int32
	for _, v := range list {
		slots = append(slots, slot(v, a.typ))
	}
	return slots
}

// load builds ld.
func load(b *builder, o *opcode) {
	a := o.access(b)
	o.refuseIf(a.strong && (a.space == param || a.space == constant), "nobody writes there")
	b.keepStep(o, a)
	args := b.arguments(2)
	i := inst{vec: b.vector(args[0], a, b.wideTarget)}
	width := b.widths(args[0], a)
	b.locate(args[1], &a, &i)
	i.d = i.vec[0]
	i.run = a.loader(width)
	b.emit(i)
	b.policy(o)
}

// widths returns the type of the registers that are loaded, which must be as wide as
// each other.
func (b *builder) widths(o operand, a access) typ {
	register := typ{}
	for _, v := range o.values() {
		if v.what == isRegister {
			failIf(register.size != 0 && register.size != v.reg.typ.size, b.line, "registers of different widths")
			register = v.reg.typ
		}
	}
	if register.size == 0 {
		return a.typ
	}
	return register
}

// loader makes what loads, into registers of a type.
func (a access) loader(register typ) run {
	s, size, get := a.space, uint64(a.typ.size), a.getter(register)
	if a.count == 1 {
		return func(t *thread, i *inst) {
			if m := t.at(s, t.r[i.a]+i.imm, size, false); m != nil {
				t.r[i.d] = get(m)
			}
		}
	}
	all := size * uint64(a.count)
	return func(t *thread, i *inst) {
		m := t.at(s, t.r[i.a]+i.imm, all, false)
		if m == nil {
			return
		}
		for _, d := range i.vec {
			t.r[d] = get(m)
			m = m[size:]
		}
	}
}

// getter reads one value, and extends a signed one to all of its register.
func (a access) getter(register typ) func([]byte) uint64 {
	get := getters[a.typ.size]
	if a.strong {
		get = loadWord[a.typ.size]
	}
	extend := extender(a.typ, register)
	if extend == nil {
		return get
	}
	return func(m []byte) uint64 { return extend(get(m)) }
}

var getters = map[int]func([]byte) uint64{
	1: func(m []byte) uint64 { return uint64(m[0]) },
	2: func(m []byte) uint64 { return uint64(binary.LittleEndian.Uint16(m)) },
	4: func(m []byte) uint64 { return uint64(binary.LittleEndian.Uint32(m)) },
	8: binary.LittleEndian.Uint64,
}

// setter writes one value.
func (a access) setter() func([]byte, uint64) {
	if a.strong {
		return storeWord[a.typ.size]
	}
	return setters[a.typ.size]
}

var setters = map[int]func([]byte, uint64){
	1: func(m []byte, v uint64) { m[0] = byte(v) },
	2: func(m []byte, v uint64) { binary.LittleEndian.PutUint16(m, uint16(v)) },
	4: func(m []byte, v uint64) { binary.LittleEndian.PutUint32(m, uint32(v)) },
	8: binary.LittleEndian.PutUint64,
}

// store builds st.
func store(b *builder, o *opcode) {
	a := o.access(b)
	o.refuseIf(a.space == constant, "constants are not written")
	b.keepStep(o, a)
	args := b.arguments(2)
	var i inst
	b.locate(args[0], &a, &i)
	i.vec = b.vector(args[1], a, b.wideSource)
	i.b = i.vec[0]
	i.run = a.storer()
	b.emit(i)
	b.policy(o)
}

func (a access) storer() run {
	s, size, put := a.space, uint64(a.typ.size), a.setter()
	if a.count == 1 {
		return func(t *thread, i *inst) {
			if m := t.at(s, t.r[i.a]+i.imm, size, true); m != nil {
				put(m, t.r[i.b])
			}
		}
	}
	all := size * uint64(a.count)
	return func(t *thread, i *inst) {
		m := t.at(s, t.r[i.a]+i.imm, all, true)
		if m == nil {
			return
		}
		for _, v := range i.vec {
			put(m, t.r[v])
			m = m[size:]
		}
	}
}

// ignoreAddress builds what only hints at an address.
func ignoreAddress(b *builder, o *opcode) {
	oneOf(o, spaceNames)
	o.refuseIf(!o.take("L1", "L2", "L2::evict_last", "L2::evict_normal"), "without a level")
	args := b.arguments(1)
	failIf(args[0].what != isAddress, b.line, "an address in brackets belongs here")
	b.emit(inst{run: runNothing})
}
