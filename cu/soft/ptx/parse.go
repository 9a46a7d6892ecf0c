package ptx

import (
	"slices"
	"strconv"
	"strings"
)

// A Module is what a PTX text declares, checked and ready to be linked. It does
// not change, and may be used by several goroutines.
type Module struct {
	Version   string // of PTX: 7.4
	Target    string // sm_75
	functions map[string]*function
	order     []*function
	variables []*variable // of the global and constant spaces
	names     map[string]*variable
}

// A function is an entry or a device function.
type function struct {
	name   string
	entry  bool
	line   int
	params []parameter
	result []parameter
	code   []inst

	slots    int32     // registers
	preset   []preset  // slots that are filled before it begins
	special  []int32   // slots of special registers, with their numbers
	which    []special // of those
	frame    int       // bytes of its local memory, parameters included
	shared   int       // bytes of static shared memory
	dynamic  bool      // it uses dynamic shared memory
	declared bool      // only: the body is missing

	maxThreads int    // .maxntid, multiplied; 0 is none
	reqThreads [3]int // .reqntid
}

// A preset is a slot's value before the function begins.
type preset struct {
	slot  int32
	value uint64
	v     *variable // whose address is to be added, or nil
}

// A parameter is one of a function's, at its place among the others.
type parameter struct {
	variable
	typ typ
}

// Parse reads a module, PTX 6.0 to 9.x. Errors are *[Error].
func Parse(text string) (*Module, error) {
	tokens, err := lex(text)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens, m: &Module{functions: map[string]*function{}, names: map[string]*variable{}}}
	for !p.end() {
		if err := p.directive(); err != nil {
			return nil, err
		}
	}
	switch {
	case p.m.Version == "":
		return nil, errorf(1, "no .version: this is no PTX")
	case p.m.Target == "":
		return nil, errorf(1, "no .target")
	}
	return p.m, p.finish()
}

type parser struct {
	tokens []token
	at     int
	m      *Module
	later  []func() error // what needs all names
}

func (p *parser) end() bool { return p.at >= len(p.tokens) }

func (p *parser) peek() token {
	if p.end() {
		return token{line: p.line()}
	}
	return p.tokens[p.at]
}

func (p *parser) next() token {
	t := p.peek()
	p.at++
	return t
}

// line is where the parser is.
func (p *parser) line() int {
	if len(p.tokens) == 0 {
		return 1
	}
	return p.tokens[min(p.at, len(p.tokens)-1)].line
}

func (p *parser) accept(s string) bool {
	if !p.end() && p.tokens[p.at].is(s) {
		p.at++
		return true
	}
	return false
}

func (p *parser) expect(s string) error {
	if t := p.next(); !t.is(s) {
		if t.text == "" {
			return errorf(t.line, "the text ends where %q belongs", s)
		}
		return errorf(t.line, "unexpected %q where %q belongs", t.text, s)
	}
	return nil
}

// word takes a name.
func (p *parser) word() (string, error) {
	t := p.next()
	if !t.isWord() {
		return "", errorf(t.line, "unexpected %q where a name belongs", t.text)
	}
	return t.text, nil
}

// integer takes a whole number of at most limit.
func (p *parser) integer(limit uint64) (int, error) {
	t := p.next()
	v, err := strconv.ParseUint(t.text, 0, 64)
	if err != nil || v > limit {
		return 0, errorf(t.line, "%q: want a number of at most %d", t.text, limit)
	}
	return int(v), nil
}

// directive takes one of the module's.
func (p *parser) directive() error {
	t := p.next()
	switch t.text {
	case ".version":
		return p.version()
	case ".target":
		return p.target()
	case ".address_size":
		if n, err := p.integer(64); err != nil || n != 64 {
			return errorf(t.line, "only 64-bit addresses are supported")
		}
		return nil
	case ".file", ".loc":
		p.skipLine(t.line)
		return nil
	case ".section":
		return p.skipSection()
	case ".pragma":
		return p.skipTo(";")
	case ".visible", ".extern", ".weak", ".common":
		return nil // there is one module, and the names in it are its own
	case ".entry":
		return p.function(true)
	case ".func":
		return p.function(false)
	case ".global", ".const", ".shared":
		return p.globals(t)
	case ";":
		return nil
	}
	return errorf(t.line, "%s is not supported here", t.text)
}

func (p *parser) version() error {
	t := p.next()
	major, _, _ := strings.Cut(t.text, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 6 || n > 9 {
		return errorf(t.line, "PTX %s is not supported, but 6 to 9", t.text)
	}
	p.m.Version = t.text
	return nil
}

func (p *parser) target() (err error) {
	for {
		w, err := p.word()
		if err != nil {
			return err
		}
		if strings.HasPrefix(w, "sm_") {
			p.m.Target = w
		}
		if !p.accept(",") {
			return nil
		}
	}
}

// skipLine goes past what is left of a line.
func (p *parser) skipLine(line int) {
	for !p.end() && p.peek().line == line {
		p.at++
	}
}

func (p *parser) skipTo(s string) error {
	for !p.end() {
		if p.next().is(s) {
			return nil
		}
	}
	return p.expect(s)
}

// skipSection goes past debugging information.
func (p *parser) skipSection() error {
	if err := p.skipTo("{"); err != nil {
		return err
	}
	return p.skipTo("}")
}

// globals takes variables of the module.
func (p *parser) globals(t token) error {
	vars, err := p.variables(spaceNames[t.text[1:]], nil)
	if err != nil {
		return err
	}
	for _, v := range vars {
		if old := p.m.names[v.name]; old != nil {
			if old.array || old.size == v.size {
				continue // declared before
			}
			return errorf(v.line, "%s is declared twice", v.name)
		}
		p.m.names[v.name] = v
		if v.space != shared {
			p.m.variables = append(p.m.variables, v)
		}
	}
	return nil
}

// maxVariable bounds what a variable may take, in bytes.
const maxVariable = 1 << 40

// variables takes a declaration behind its space.
func (p *parser) variables(s space, f *builder) (vars []*variable, err error) {
	align, typ, err := p.declared()
	if err != nil {
		return nil, err
	}
	for {
		v := &variable{space: s, align: max(align, typ.size), line: p.line()}
		if v.name, err = p.word(); err != nil {
			return nil, err
		}
		if p.accept("<") { // name<n> is n variables
			return nil, errorf(v.line, "%s<…>: only registers are declared in numbers", v.name)
		}
		if err := p.dimensions(v, typ); err != nil {
			return nil, err
		}
		if p.accept("=") {
			if err := p.initialiser(v, typ); err != nil {
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

// declared takes alignment, vector and type.
func (p *parser) declared() (align int, t typ, err error) {
	wide := 1
	for {
		tok := p.next()
		switch tok.text {
		case ".align":
			if align, err = p.integer(1 << 16); err != nil {
				return 0, t, err
			}
			if align&(align-1) != 0 || align == 0 {
				return 0, t, errorf(tok.line, "alignment %d is no power of two", align)
			}
			continue
		case ".attribute":
			return 0, t, errorf(tok.line, ".attribute is not supported: managed memory")
		case ".v2":
			wide = 2
			continue
		case ".v4":
			wide = 4
			continue
		case ".ptr": // what a parameter points to, for optimisers
			continue
		case ".global", ".shared", ".const", ".local":
			continue
		}
		var ok bool
		if t, ok = typeNames[strings.TrimPrefix(tok.text, ".")]; !ok || t.kind == predicate {
			return 0, t, errorf(tok.line, "%q is no type of a variable", tok.text)
		}
		if wide > 1 {
			align = max(align, wide*t.size)
			t.size *= wide // only sizes matter from here on
		}
		return align, t, nil
	}
}

// dimensions sets the variable's size.
func (p *parser) dimensions(v *variable, t typ) error {
	n := uint64(t.size)
	for p.accept("[") {
		if p.accept("]") {
			v.array, n = true, 0
			continue
		}
		d, err := p.integer(maxVariable)
		if err != nil {
			return err
		}
		if n *= uint64(d); n > maxVariable {
			return errorf(v.line, "%s is too large", v.name)
		}
		if err := p.expect("]"); err != nil {
			return err
		}
	}
	v.size = int(n)
	return nil
}

// maxInit bounds what is written out of a variable, in bytes.
const maxInit = 1 << 28

// initialiser takes a value, or nested braces of them.
func (p *parser) initialiser(v *variable, t typ) error {
	if v.space != global && v.space != constant {
		return errorf(v.line, "%s cannot have an initial value", v.name)
	}
	if v.size > maxInit {
		return errorf(v.line, "%s is too large to be written out", v.name)
	}
	var data []byte
	if err := p.values(v, t, &data); err != nil {
		return err
	}
	if v.array {
		v.array, v.size = false, len(data)
	}
	if len(data) > v.size {
		return errorf(v.line, "%s has %d bytes and its initial value %d", v.name, v.size, len(data))
	}
	v.init = append(data, make([]byte, v.size-len(data))...)
	return nil
}

func (p *parser) values(v *variable, t typ, data *[]byte) error {
	if !p.accept("{") {
		return p.value(v, t, data)
	}
	for {
		if p.accept("}") {
			return nil
		}
		if err := p.values(v, t, data); err != nil {
			return err
		}
		if !p.accept(",") {
			return p.expect("}")
		}
	}
}

func (p *parser) value(v *variable, t typ, data *[]byte) error {
	if len(*data) > maxInit {
		return errorf(v.line, "the initial value of %s is too long", v.name)
	}
	tok := p.peek()
	if tok.isWord() {
		return p.addressValue(v, t, data)
	}
	o, err := p.number()
	if err != nil {
		return err
	}
	bits, err := o.as(t, tok.line)
	for range t.size {
		*data = append(*data, byte(bits))
		bits >>= 8
	}
	return err
}

// addressValue takes the name of another variable, or generic(name).
func (p *parser) addressValue(v *variable, t typ, data *[]byte) error {
	tok := p.next()
	r := reference{at: len(*data), symbol: tok.text}
	if tok.is("generic") && p.accept("(") {
		r.generic = true
		var err error
		if r.symbol, err = p.word(); err != nil {
			return err
		}
		if err := p.expect(")"); err != nil {
			return err
		}
	}
	plus, err := p.plus()
	if err != nil {
		return err
	}
	if t.size != 8 {
		return errorf(tok.line, "an address does not fit into .%s", t)
	}
	r.plus = int64(plus)
	v.refs = append(v.refs, r)
	*data = append(*data, make([]byte, 8)...)
	return nil
}

// as gives a literal's bits as a type wants them.
func (o operand) as(t typ, line int) (uint64, error) {
	switch {
	case o.what == isInteger && t.kind != float:
		return o.bits & t.mask(), nil
	case o.what == isInteger: // the bits of a float, as .b32 has them
		return o.bits & t.mask(), nil
	case o.what == isFloat && t.size == 8:
		return o.bits, nil
	case o.what == isFloat && t.size == 4:
		return uint64(narrow(o.bits)), nil
	}
	return 0, errorf(line, "this number does not fit .%s", t)
}

// finish does what needed all names.
func (p *parser) finish() error {
	for _, f := range p.later {
		if err := f(); err != nil {
			return err
		}
	}
	for _, f := range p.m.order {
		if f.declared && !f.entry && f.name != "" {
			continue // an error where it is called
		}
	}
	return nil
}

// Entries lists the names of the kernels, in the order of the text.
func (m *Module) Entries() []string {
	var names []string
	for _, f := range m.order {
		if f.entry && !f.declared {
			names = append(names, f.name)
		}
	}
	return slices.Clip(names)
}
