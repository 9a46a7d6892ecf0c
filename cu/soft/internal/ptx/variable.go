package ptx

import (
	"encoding/binary"
	"math/bits"
	"strings"
)

// A variable is named memory.
type variable struct {
	name     string
	space    space
	align    int
	size     int // bytes
	line     int
	init     []byte      // what it begins with; the rest is zeros
	refs     []reference // addresses in init that are known later
	external bool        // declared, not defined
	array    bool        // of a length that the launch says: dynamic shared memory
	rows     []int       // dimensions but the first
	framed   bool        // it lies in a function's frame
	at       uint64      // in the frame, or among the parameters
}

// A reference is the address of a variable within another's initial value.
type reference struct {
	at     int // bytes
	symbol string
	plus   int64
	line   int
	byte   bool // only one of it is there, so many bits up
	shift  int
}

// A declaration is what stands before the names of variables.
type declaration struct {
	align int
	typ   typ
	count int // of a vector
}

// Bounds on what a text may ask for. Where the real assembler has one, it is
// that: of constants, local memory, parameters and shared memory.
const (
	maxVariable  = 1 << 40 // of one, and of all
	maxInit      = 1 << 28 // of all variables, in the text
	maxZeros     = 1 << 24 // of all rows that are not full
	maxConstants = 64 << 10
	maxParams    = 32764
	maxShared    = 48 << 10
	maxNesting   = 64      // of braces, and dimensions
	maxReached   = 1 << 25 // steps to find what all entries call
)

// globals takes variables of the module.
func (p *parser) globals(s space) {
	vars := p.variables(s)
	for _, v := range vars {
		v.external = p.external
		failIf(v.array && !v.external, v.line, "%s has no length", v.name)
		p.m.declare(v)
	}
}

// declare makes a variable known; a definition takes the place of declarations,
// which others refer to by then.
func (m *Module) declare(v *variable) {
	old := m.names[v.name]
	switch {
	case m.functions[v.name] != nil:
		panic(errorf(v.line, "%s is a function's name, too", v.name))
	case old == nil:
		m.names[v.name] = v
		if v.space != shared {
			m.variables = append(m.variables, v)
		}
	case old.space != v.space || !old.external && !v.external:
		panic(errorf(v.line, "%s is declared twice", v.name))
	case old.external && !v.external:
		*old = *v
	}
}

// resolve looks for what a variable's initial value refers to.
func (m *Module) resolve(v *variable) {
	failIf(v.external, v.line, "%s is of another module", v.name)
	for _, r := range v.refs {
		if f := m.functions[r.symbol]; f != nil && !f.entry && r.plus == 0 {
			m.take(f)
			continue
		}
		if to := m.names[r.symbol]; to == nil || to.space != global && to.space != constant {
			panic(errorf(r.line, "there is no variable %s whose address is known", r.symbol))
		}
	}
}

// checkSizes wants constants to fit where the GPU keeps them, and all variables into
// what an address can say.
func (m *Module) checkSizes() {
	total, constants := 0, 0
	for _, v := range m.variables {
		total += v.size
		failIf(total > maxVariable, v.line, "more than %d bytes of variables", maxVariable)
		if v.space != constant {
			continue
		}
		constants += v.size
		failIf(constants > maxConstants, v.line, "more than %d bytes of constants", maxConstants)
	}
}

// variables takes a declaration behind its space.
func (p *parser) variables(s space) (vars []*variable) {
	d := p.declaration()
	p.list(func() {
		v := &variable{space: s, align: d.align, line: p.line(), name: p.word()}
		p.dimensions(v, d)
		if p.accept("=") {
			p.initialiser(v, d)
		}
		vars = append(vars, v)
	})
	return vars
}

// declaration takes alignment, vector and type.
func (p *parser) declaration() (d declaration) {
	d.count = 1
	for {
		t := p.next()
		switch t.text {
		case ".align":
			d.align = p.alignment()
			continue
		case ".attribute":
			panic(errorf(t.line, "variables with attributes are not supported: .managed ones are in memory that moves between host and device"))
		case ".v2":
			d.count = 2
			continue
		case ".v4":
			d.count = 4
			continue
		}
		if what, ok := handles[t.text]; ok {
			panic(errorf(t.line, "variables of type %s are not supported: they are for %s", t.text, what))
		}
		var ok bool
		if d.typ, ok = typeNames[strings.TrimPrefix(t.text, ".")]; !ok || d.typ.kind == predicate || !strings.HasPrefix(t.text, ".") {
			panic(errorf(t.line, "%s is no type of a variable that is supported", t))
		}
		d.align = max(d.align, d.count*d.typ.size)
		return d
	}
}

// handles are types of variables that stand for something else, and what for.
var handles = map[string]string{".texref": textures, ".samplerref": textures, ".surfref": surfaces}

func (p *parser) alignment() int {
	line := p.line()
	n := p.integer(1 << 16)
	failIf(n == 0 || n&(n-1) != 0, line, "alignment %d is no power of two", n)
	return n
}

// dimensions sets the variable's size. The first one may be left open.
func (p *parser) dimensions(v *variable, d declaration) {
	n := uint64(d.typ.size * d.count)
	for first := true; p.accept("["); first = false {
		if first && p.accept("]") {
			v.array = true
			continue
		}
		count := p.integer(maxVariable)
		failIf(count > 0 && n > maxVariable/uint64(count), v.line, "%s is too large", v.name)
		n *= uint64(count)
		if !first {
			v.rows = append(v.rows, count)
		}
		failIf(len(v.rows) > maxNesting, v.line, "%s has more than %d dimensions", v.name, maxNesting)
		p.expect("]")
	}
	if v.size = int(n); v.array {
		v.size = 0
	}
}

// initialiser takes a value, or nested braces of them.
func (p *parser) initialiser(v *variable, d declaration) {
	failIf(v.space != global && v.space != constant, v.line, "%s cannot have an initial value", v.name)
	p.values(v, d.typ)
	if v.array {
		v.array, v.size = false, len(v.init)
	}
	p.initial += len(v.init)
	failIf(len(v.init) > v.size, v.line, "%s has %d bytes and its initial value %d", v.name, v.size, len(v.init))
}

// values takes them in the order that they lie in memory; of a row within braces
// that is not full the rest is zeros.
func (p *parser) values(v *variable, t typ) {
	var began []int // where the rows did that are open
	for {
		depth := len(began)
		switch {
		case depth <= len(v.rows) && p.accept("{"):
			began = append(began, len(v.init))
			continue
		case depth > 0 && p.accept("}"):
			p.endRow(v, depth, began[depth-1], t)
			began = began[:depth-1]
		default:
			p.value(v, t)
		}
		if len(began) == 0 {
			return
		}
		if !p.accept(",") && !p.peek().is("}") {
			p.expect("}")
			return
		}
	}
}

// endRow fills up a row of so many braces, the outermost one excepted.
func (p *parser) endRow(v *variable, depth, began int, t typ) {
	if depth == 1 {
		return
	}
	size := t.size
	for _, n := range v.rows[depth-2:] {
		size *= n
	}
	missing := began + size - len(v.init)
	p.zeros += missing
	failIf(missing < 0 || p.zeros > maxZeros, v.line, "a row of the initial value of %s is too long", v.name)
	v.init = append(v.init, make([]byte, missing)...)
}

func (p *parser) value(v *variable, t typ) {
	failIf(p.initial+len(v.init) >= maxInit, v.line, "initial values of more than %d bytes", maxInit)
	tok := p.peek()
	if tok.isWord() {
		p.addressValue(v, t)
		return
	}
	o := p.number()
	if p.accept("(") {
		p.maskedValue(v, t, o, tok.line)
		return
	}
	bits := o.as(t, tok.line)
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], bits)
	v.init = append(v.init, b[:t.size]...)
}

// addressValue takes the address of a variable or a function.
func (p *parser) addressValue(v *variable, t typ) {
	r := p.reference()
	failIf(t.size != 8 || t.kind == float, r.line, "an address does not fit .%s", t)
	r.at = len(v.init)
	v.refs = append(v.refs, r)
	v.init = append(v.init, make([]byte, 8)...)
}

// reference takes the name of another variable, or generic(name): the same here,
// where global and constant addresses are generic ones.
func (p *parser) reference() (r reference) {
	r.line = p.line()
	r.symbol = p.word()
	if r.symbol == "generic" && p.accept("(") {
		r.symbol = p.word()
		p.expect(")")
	}
	r.plus = int64(p.plus())
	return r
}

// maskedValue takes one byte of an address, 0xFF00(name), behind the parenthesis.
func (p *parser) maskedValue(v *variable, t typ, mask operand, line int) {
	r := p.reference()
	r.shift = bits.TrailingZeros64(mask.bits)
	failIf(mask.what != isInteger || mask.bits == 0 || r.shift%8 != 0 || mask.bits>>r.shift != 0xff || t.size != 1, line, "this is no mask of one byte of an address")
	r.byte, r.at = true, len(v.init)
	v.refs = append(v.refs, r)
	v.init = append(v.init, 0)
	p.expect(")")
}

// A Variable is what a module says of a variable that has an address: of the
// global or the constant space.
type Variable struct {
	Name        string
	Size, Align int
	Constant    bool // kernels may not write it
}

// Variables lists the module's variables, in the order of the text.
func (m *Module) Variables() []Variable {
	var list []Variable
	for _, v := range m.variables {
		list = append(list, Variable{v.name, v.size, v.align, v.space == constant})
	}
	return list
}

// Initial returns what a variable begins with, which may be shorter than it: the
// rest is zeros. address says where the variables lie.
func (m *Module) Initial(name string, address func(string) uint64) []byte {
	v := m.names[name]
	if v == nil {
		return nil
	}
	b := append([]byte(nil), v.init...)
	for _, r := range v.refs {
		at := uint64(0)
		if f := m.functions[r.symbol]; f != nil {
			at = f.address()
		} else {
			at = address(r.symbol) + uint64(r.plus)
		}
		if r.byte {
			b[r.at] = byte(at >> r.shift)
			continue
		}
		binary.LittleEndian.PutUint64(b[r.at:], at)
	}
	return b
}
