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
func (p *parser) globals(s space) error {
	vars, err := p.variables(s)
	if err != nil {
		return err
	}
	for _, v := range vars {
		v.external = p.external
		if v.array && (!v.external || s != shared) && !v.external {
			return errorf(v.line, "%s has no length", v.name)
		}
		if err := p.m.declare(v); err != nil {
			return err
		}
	}
	return nil
}

// declare makes a variable known; a definition takes the place of declarations,
// which others refer to by then.
func (m *Module) declare(v *variable) error {
	old := m.names[v.name]
	switch {
	case m.functions[v.name] != nil:
		return errorf(v.line, "%s is a function's name, too", v.name)
	case old == nil:
		m.names[v.name] = v
		if v.space != shared {
			m.variables = append(m.variables, v)
		}
		return nil
	case old.space != v.space || !old.external && !v.external:
		return errorf(v.line, "%s is declared twice", v.name)
	case old.external && !v.external:
		*old = *v
	}
	return nil
}

// resolve looks for what a variable's initial value refers to.
func (m *Module) resolve(v *variable) error {
	if v.external {
		return errorf(v.line, "%s is of another module", v.name)
	}
	for _, r := range v.refs {
		if f := m.functions[r.symbol]; f != nil && !f.entry && r.plus == 0 {
			m.take(f)
			continue
		}
		if to := m.names[r.symbol]; to == nil || to.space != global && to.space != constant {
			return errorf(r.line, "there is no variable %s whose address is known", r.symbol)
		}
	}
	return nil
}

// checkSizes wants constants to fit where the GPU keeps them, and all variables into
// what an address can say.
func (m *Module) checkSizes() error {
	total, constants := 0, 0
	for _, v := range m.variables {
		if total += v.size; total > maxVariable {
			return errorf(v.line, "more than %d bytes of variables", maxVariable)
		}
		if v.space != constant {
			continue
		}
		if constants += v.size; constants > maxConstants {
			return errorf(v.line, "more than %d bytes of constants", maxConstants)
		}
	}
	return nil
}

// variables takes a declaration behind its space.
func (p *parser) variables(s space) (vars []*variable, err error) {
	d, err := p.declaration()
	if err != nil {
		return nil, err
	}
	for {
		v := &variable{space: s, align: d.align, line: p.line()}
		if v.name, err = p.word(); err != nil {
			return nil, err
		}
		if err := p.dimensions(v, d); err != nil {
			return nil, err
		}
		if p.accept("=") {
			if err := p.initialiser(v, d); err != nil {
				return nil, err
			}
		}
		vars = append(vars, v)
		if p.accept(",") {
			continue
		}
		return vars, p.expect(";")
	}
}

// declaration takes alignment, vector and type.
func (p *parser) declaration() (d declaration, err error) {
	d.count = 1
	for {
		t := p.next()
		switch t.text {
		case ".align":
			if d.align, err = p.alignment(); err != nil {
				return d, err
			}
			continue
		case ".attribute":
			return d, errorf(t.line, "variables with attributes are not supported: .managed ones are in memory that moves between host and device")
		case ".v2":
			d.count = 2
			continue
		case ".v4":
			d.count = 4
			continue
		}
		if what, ok := handles[t.text]; ok {
			return d, errorf(t.line, "variables of type %s are not supported: they are for %s", t.text, what)
		}
		var ok bool
		if d.typ, ok = typeNames[strings.TrimPrefix(t.text, ".")]; !ok || d.typ.kind == predicate || !strings.HasPrefix(t.text, ".") {
			return d, errorf(t.line, "%s is no type of a variable that is supported", t)
		}
		d.align = max(d.align, d.count*d.typ.size)
		return d, nil
	}
}

// handles are types of variables that stand for something else, and what for.
var handles = map[string]string{".texref": textures, ".samplerref": textures, ".surfref": surfaces}

func (p *parser) alignment() (int, error) {
	line := p.line()
	n, err := p.integer(1 << 16)
	if err == nil && (n == 0 || n&(n-1) != 0) {
		err = errorf(line, "alignment %d is no power of two", n)
	}
	return n, err
}

// dimensions sets the variable's size. The first one may be left open.
func (p *parser) dimensions(v *variable, d declaration) error {
	n := uint64(d.typ.size * d.count)
	for first := true; p.accept("["); first = false {
		if first && p.accept("]") {
			v.array = true
			continue
		}
		count, err := p.integer(maxVariable)
		if err != nil {
			return err
		}
		if count > 0 && n > maxVariable/uint64(count) {
			return errorf(v.line, "%s is too large", v.name)
		}
		n *= uint64(count)
		if !first {
			v.rows = append(v.rows, count)
		}
		if len(v.rows) > maxNesting {
			return errorf(v.line, "%s has more than %d dimensions", v.name, maxNesting)
		}
		if err := p.expect("]"); err != nil {
			return err
		}
	}
	if v.size = int(n); v.array {
		v.size = 0
	}
	return nil
}

// initialiser takes a value, or nested braces of them.
func (p *parser) initialiser(v *variable, d declaration) error {
	if v.space != global && v.space != constant {
		return errorf(v.line, "%s cannot have an initial value", v.name)
	}
	if err := p.values(v, d.typ); err != nil {
		return err
	}
	if v.array {
		v.array, v.size = false, len(v.init)
	}
	if p.initial += len(v.init); len(v.init) > v.size {
		return errorf(v.line, "%s has %d bytes and its initial value %d", v.name, v.size, len(v.init))
	}
	return nil
}

// values takes them in the order that they lie in memory; of a row within braces
// that is not full the rest is zeros.
func (p *parser) values(v *variable, t typ) error {
	var began []int // where the rows did that are open
	for {
		depth := len(began)
		switch {
		case depth <= len(v.rows) && p.accept("{"):
			began = append(began, len(v.init))
			continue
		case depth > 0 && p.accept("}"):
			if err := p.endRow(v, depth, began[depth-1], t); err != nil {
				return err
			}
			began = began[:depth-1]
		default:
			if err := p.value(v, t); err != nil {
				return err
			}
		}
		if len(began) == 0 {
			return nil
		}
		if !p.accept(",") && !p.peek().is("}") {
			return p.expect("}")
		}
	}
}

// endRow fills up a row of so many braces, the outermost one excepted.
func (p *parser) endRow(v *variable, depth, began int, t typ) error {
	if depth == 1 {
		return nil
	}
	size := t.size
	for _, n := range v.rows[depth-2:] {
		size *= n
	}
	missing := began + size - len(v.init)
	if p.zeros += missing; missing < 0 || p.zeros > maxZeros {
		return errorf(v.line, "a row of the initial value of %s is too long", v.name)
	}
	v.init = append(v.init, make([]byte, missing)...)
	return nil
}

func (p *parser) value(v *variable, t typ) error {
	if p.initial+len(v.init) >= maxInit {
		return errorf(v.line, "initial values of more than %d bytes", maxInit)
	}
	tok := p.peek()
	if tok.isWord() {
		return p.addressValue(v, t)
	}
	o, err := p.number()
	if err != nil {
		return err
	}
	if p.accept("(") {
		return p.maskedValue(v, t, o, tok.line)
	}
	bits, err := o.as(t, tok.line)
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], bits)
	v.init = append(v.init, b[:t.size]...)
	return err
}

// addressValue takes the address of a variable or a function.
func (p *parser) addressValue(v *variable, t typ) error {
	r, err := p.reference()
	if err != nil {
		return err
	}
	if t.size != 8 || t.kind == float {
		return errorf(r.line, "an address does not fit .%s", t)
	}
	r.at = len(v.init)
	v.refs = append(v.refs, r)
	v.init = append(v.init, make([]byte, 8)...)
	return nil
}

// reference takes the name of another variable, or generic(name): the same here,
// where global and constant addresses are generic ones.
func (p *parser) reference() (r reference, err error) {
	r.line = p.line()
	if r.symbol, err = p.word(); err != nil {
		return r, err
	}
	if r.symbol == "generic" && p.accept("(") {
		if r.symbol, err = p.word(); err != nil {
			return r, err
		}
		if err := p.expect(")"); err != nil {
			return r, err
		}
	}
	plus, err := p.plus()
	r.plus = int64(plus)
	return r, err
}

// maskedValue takes one byte of an address, 0xFF00(name), behind the parenthesis.
func (p *parser) maskedValue(v *variable, t typ, mask operand, line int) error {
	r, err := p.reference()
	if err != nil {
		return err
	}
	r.shift = bits.TrailingZeros64(mask.bits)
	if mask.what != isInteger || mask.bits == 0 || r.shift%8 != 0 || mask.bits>>r.shift != 0xff || t.size != 1 {
		return errorf(line, "this is no mask of one byte of an address")
	}
	r.byte, r.at = true, len(v.init)
	v.refs = append(v.refs, r)
	v.init = append(v.init, 0)
	return p.expect(")")
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
