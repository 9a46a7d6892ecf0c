package ptx

import (
	"math"
	"strconv"
	"strings"
)

// Bounds on what one function may ask for. The real assembler's are lower.
const (
	maxSlots = 1 << 16
	maxFrame = 1 << 26 // bytes
)

// A builder makes a function of its body.
type builder struct {
	p       *parser
	f       *function
	scopes  []*scope
	labels  map[string]int32
	jumps   []jump
	presets map[preset]int32 // slots of numbers and addresses
	special map[special]int32
}

// A scope is what is declared between two braces.
type scope struct {
	registers map[string]register
	ranges    []registerRange
	variables map[string]*variable
}

// A registerRange is %name<count>.
type registerRange struct {
	prefix string
	count  int
	first  register
}

// A jump is a branch to a label that may come later.
type jump struct {
	inst  int
	label string
	line  int
}

// function takes an entry or a device function behind its word.
func (p *parser) function(entry bool) (err error) {
	f := &function{entry: entry, line: p.line()}
	if !entry && p.accept("(") {
		if f.result, err = p.parameters(); err != nil {
			return err
		}
	}
	if f.name, err = p.word(); err != nil {
		return err
	}
	if p.accept("(") {
		if f.params, err = p.parameters(); err != nil {
			return err
		}
	}
	if err := p.bounds(f); err != nil {
		return err
	}
	if f.declared = p.accept(";"); !f.declared {
		if err := p.body(f); err != nil {
			return err
		}
	}
	return p.m.add(f)
}

// add files a function; a body takes the place of a declaration. Calls hold on to
// whichever came first.
func (m *Module) add(f *function) error {
	old := m.functions[f.name]
	switch {
	case old == nil:
		m.functions[f.name] = f
		m.order = append(m.order, f)
	case f.declared:
	case old.declared:
		*old = *f
	default:
		return errorf(f.line, "%s is defined twice", f.name)
	}
	return nil
}

// maxParams bounds the parameters of a function, in bytes.
const maxParams = 1 << 16

// parameters takes a list behind its parenthesis, and places them.
func (p *parser) parameters() (list []parameter, err error) {
	at := uint64(0)
	for !p.accept(")") {
		if len(list) > 0 {
			if err := p.expect(","); err != nil {
				return nil, err
			}
		}
		q, err := p.parameter()
		if err != nil {
			return nil, err
		}
		at = alignUp(at, uint64(q.align))
		q.at = at
		if at += uint64(q.size); at > maxParams {
			return nil, errorf(q.line, "too many bytes of parameters")
		}
		list = append(list, q)
	}
	return list, nil
}

func (p *parser) parameter() (q parameter, err error) {
	switch t := p.next(); t.text {
	case ".param":
	case ".reg":
		return q, errorf(t.line, "parameters in registers are not supported; compile for sm_20 or newer")
	default:
		return q, errorf(t.line, "unexpected %q where .param belongs", t.text)
	}
	q.space, q.line = param, p.line()
	align, t, err := p.declared()
	if err != nil {
		return q, err
	}
	q.typ, q.align = t, max(align, t.size)
	for p.accept(".ptr") || p.accept(".global") || p.accept(".shared") || p.accept(".const") || p.accept(".local") || p.accept(".align") {
		if p.peek().isNumber() {
			p.next()
		}
	}
	if q.name, err = p.word(); err != nil {
		return q, err
	}
	return q, p.dimensions(&q.variable, t)
}

func alignUp(n, to uint64) uint64 { return (n + to - 1) &^ (to - 1) }

// bounds takes what a function says of its blocks.
func (p *parser) bounds(f *function) error {
	for {
		t := p.peek()
		switch t.text {
		case ".maxntid", ".reqntid":
			p.next()
			dims, err := p.triple()
			if err != nil {
				return err
			}
			f.maxThreads = dims[0] * dims[1] * dims[2]
			if t.is(".reqntid") {
				f.reqThreads = dims
			}
		case ".minnctapersm", ".maxnreg", ".maxnctapersm":
			p.next()
			if _, err := p.integer(1 << 30); err != nil {
				return err
			}
		case ".noreturn":
			p.next()
		case ".pragma":
			if err := p.skipTo(";"); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// triple takes one to three numbers.
func (p *parser) triple() (d [3]int, err error) {
	d = [3]int{1, 1, 1}
	for i := range d {
		if d[i], err = p.integer(1 << 16); err != nil {
			return d, err
		}
		if !p.accept(",") {
			break
		}
	}
	return d, nil
}

// body takes what is between the braces.
func (p *parser) body(f *function) error {
	b := &builder{p: p, f: f, labels: map[string]int32{}, presets: map[preset]int32{}, special: map[special]int32{}}
	b.open()
	if err := b.placeParameters(); err != nil {
		return err
	}
	if err := p.expect("{"); err != nil {
		return err
	}
	for !p.accept("}") {
		if p.end() {
			return p.expect("}")
		}
		if err := b.statement(); err != nil {
			return err
		}
	}
	b.emit(inst{run: runReturn, guard: -1, line: int32(p.line())}) // who falls off the end returns
	return b.land()
}

func (b *builder) open() {
	b.scopes = append(b.scopes, &scope{registers: map[string]register{}, variables: map[string]*variable{}})
}

// placeParameters makes the function's parameters known: an entry's lie in a
// buffer of their own, a device function's in its frame.
func (b *builder) placeParameters() error {
	names := b.scopes[0].variables
	for _, list := range [][]parameter{b.f.params, b.f.result} {
		for i := range list {
			v := &list[i].variable
			if !b.f.entry {
				b.place(v)
			}
			if names[v.name] != nil {
				return errorf(v.line, "%s is declared twice", v.name)
			}
			names[v.name] = v
		}
	}
	return nil
}

// place gives a variable room in the function's frame.
func (b *builder) place(v *variable) {
	v.at = alignUp(uint64(b.f.frame), uint64(max(1, v.align)))
	b.f.frame = int(v.at) + v.size
}

// statement takes a label, a directive or an instruction.
func (b *builder) statement() error {
	p := b.p
	t := p.peek()
	switch {
	case p.accept("{"):
		b.open()
		for !p.accept("}") {
			if p.end() {
				return p.expect("}")
			}
			if err := b.statement(); err != nil {
				return err
			}
		}
		b.scopes = b.scopes[:len(b.scopes)-1]
		return nil
	case p.accept(";"):
		return nil
	case strings.HasPrefix(t.text, "."):
		p.next()
		return b.directive(t)
	case t.isWord() && p.at+1 < len(p.tokens) && p.tokens[p.at+1].is(":"):
		p.at += 2
		if _, twice := b.labels[t.text]; twice {
			return errorf(t.line, "label %s is there twice", t.text)
		}
		b.labels[t.text] = int32(len(b.f.code))
		return nil
	}
	return b.instruction()
}

// directive takes one within a body.
func (b *builder) directive(t token) error {
	p := b.p
	switch t.text {
	case ".reg":
		return b.registers()
	case ".local", ".param", ".shared":
		return b.declare(spaceNames[t.text[1:]])
	case ".loc", ".file":
		p.skipLine(t.line)
		return nil
	case ".pragma":
		return p.skipTo(";")
	case ".section":
		return p.skipSection()
	}
	return errorf(t.line, "%s is not supported here", t.text)
}

// declare takes variables of the function's own.
func (b *builder) declare(s space) error {
	vars, err := b.p.variables(s, b)
	if err != nil {
		return err
	}
	for _, v := range vars {
		if v.space == shared {
			b.f.shared = b.p.m.placeShared(b.f.shared, v)
		} else {
			b.place(v)
		}
		if b.f.frame > maxFrame {
			return errorf(v.line, "more than %d bytes of local memory", maxFrame)
		}
		names := b.scopes[len(b.scopes)-1].variables
		if names[v.name] != nil {
			return errorf(v.line, "%s is declared twice", v.name)
		}
		names[v.name] = v
	}
	return nil
}

// placeShared gives a shared variable room behind what a function has.
func (m *Module) placeShared(have int, v *variable) int {
	v.at = alignUp(uint64(have), uint64(max(1, v.align)))
	return int(v.at) + v.size
}

// registers takes a .reg declaration.
func (b *builder) registers() error {
	p := b.p
	t := p.next()
	typ, ok := typeNames[strings.TrimPrefix(t.text, ".")]
	if !ok {
		return errorf(t.line, "%q is no type of a register", t.text)
	}
	s := b.scopes[len(b.scopes)-1]
	for {
		name, err := p.word()
		if err != nil {
			return err
		}
		count := 1
		if p.accept("<") {
			if count, err = p.integer(maxSlots); err != nil {
				return err
			}
			if err := p.expect(">"); err != nil {
				return err
			}
			s.ranges = append(s.ranges, registerRange{name, count, register{b.f.slots, typ}})
		} else {
			s.registers[name] = register{b.f.slots, typ}
		}
		if b.f.slots += int32(count); b.f.slots > maxSlots {
			return errorf(t.line, "more than %d registers", maxSlots)
		}
		if p.accept(",") {
			continue
		}
		return p.expect(";")
	}
}

// register finds one by its name, a special register too.
func (b *builder) register(name string) (register, bool) {
	for i := len(b.scopes) - 1; i >= 0; i-- {
		if r, ok := b.scopes[i].find(name); ok {
			return r, true
		}
	}
	if s, ok := specials[name]; ok {
		return register{b.specialSlot(s.which), s.typ}, true
	}
	return register{}, false
}

func (s *scope) find(name string) (register, bool) {
	if r, ok := s.registers[name]; ok {
		return r, true
	}
	for _, r := range s.ranges {
		digits, ok := strings.CutPrefix(name, r.prefix)
		if !ok || digits == "" || len(digits) > 1 && digits[0] == '0' {
			continue
		}
		if n, err := strconv.Atoi(digits); err == nil && n >= 0 && n < r.count {
			return register{r.first.slot + int32(n), r.first.typ}, true
		}
	}
	return register{}, false
}

// variable finds one by its name, or nil.
func (b *builder) variable(name string) *variable {
	for i := len(b.scopes) - 1; i >= 0; i-- {
		if v := b.scopes[i].variables[name]; v != nil {
			return v
		}
	}
	return b.p.m.names[name]
}

// newSlot makes one more register.
func (b *builder) newSlot() int32 {
	b.f.slots++
	return b.f.slots - 1
}

// presetSlot is a register that holds a number, or an address.
func (b *builder) presetSlot(value uint64, v *variable) int32 {
	key := preset{value: value, v: v}
	if s, ok := b.presets[key]; ok {
		return s
	}
	s := b.newSlot()
	b.presets[key] = s
	b.f.preset = append(b.f.preset, preset{s, value, v})
	return s
}

func (b *builder) specialSlot(which special) int32 {
	if s, ok := b.special[which]; ok {
		return s
	}
	s := b.newSlot()
	b.special[which] = s
	b.f.special, b.f.which = append(b.f.special, s), append(b.f.which, which)
	return s
}

// instruction takes one.
func (b *builder) instruction() error {
	p := b.p
	guard, not := int32(-1), false
	if p.accept("@") {
		g, err := p.simple(b)
		if err != nil {
			return err
		}
		if g.what != isRegister || g.reg.typ.kind != predicate {
			return errorf(p.line(), "a guard has to be a predicate")
		}
		guard, not = g.reg.slot, g.not
	}
	t := p.next()
	if !t.isWord() {
		return errorf(t.line, "unexpected %q where an instruction belongs", t.text)
	}
	o := newOpcode(t)
	build, ok := table[o.name]
	if !ok {
		return errorf(t.line, "the instruction %s is not supported", t.text)
	}
	first := len(b.f.code)
	if err := build(b, o); err != nil {
		return err
	}
	if len(o.mods) > 0 {
		return o.refuse(".%s is not known", strings.Join(o.mods, "."))
	}
	for i := first; i < len(b.f.code); i++ {
		c := &b.f.code[i]
		c.guard, c.not, c.line = guard, not, int32(t.line)
	}
	return p.expect(";")
}

// emit appends an instruction.
func (b *builder) emit(i inst) { b.f.code = append(b.f.code, i) }

// land resolves the jumps.
func (b *builder) land() error {
	for _, j := range b.jumps {
		to, ok := b.labels[j.label]
		if !ok {
			return errorf(j.line, "there is no label %s", j.label)
		}
		b.f.code[j.inst].to = to
	}
	return nil
}

// arguments takes n operands with commas between.
func (b *builder) arguments(n int) ([]operand, error) {
	var list []operand
	for i := range n {
		if i > 0 {
			if err := b.p.expect(","); err != nil {
				return nil, err
			}
		}
		o, err := b.p.operand(b)
		if err != nil {
			return nil, err
		}
		list = append(list, o)
	}
	return list, nil
}

// source is the slot of an operand that is read as a type.
func (b *builder) source(o operand, t typ) (int32, error) {
	line := b.p.line()
	switch o.what {
	case isRegister:
		if o.not {
			return 0, errorf(line, "! belongs before predicates of setp and the like")
		}
		if t.kind == predicate != (o.reg.typ.kind == predicate) {
			return 0, errorf(line, "%s is a .%s where a .%s belongs", o.name, o.reg.typ, t)
		}
		if o.reg.typ.size < t.size {
			return 0, errorf(line, "%s is a .%s, too narrow for .%s", o.name, o.reg.typ, t)
		}
		return o.reg.slot, nil
	case isInteger, isFloat:
		if t.kind == predicate {
			return b.presetSlot(boolBits(o.bits != 0), nil), nil
		}
		v, err := o.as(t, line)
		if o.what == isInteger && t.kind == float && err == nil && t.size < 4 {
			err = errorf(line, "a number in a half")
		}
		return b.presetSlot(v, nil), err
	case isSymbol:
		if o.v == nil {
			return 0, errorf(line, "there is no variable %s", o.name)
		}
		return b.addressSlot(o), nil
	}
	return 0, errorf(line, "an operand of this kind does not belong here")
}

// addressSlot is a register that holds a variable's address within its space.
// Those of the function's frame are offsets, which where they are used are added
// to where the frame is.
func (b *builder) addressSlot(o operand) int32 { return b.presetSlot(o.bits, o.v) }

// target is the slot of an operand that is written.
func (b *builder) target(o operand, t typ) (int32, error) {
	line := b.p.line()
	switch o.what {
	case isSink:
		return b.newSlot(), nil
	case isRegister:
		if t.kind == predicate != (o.reg.typ.kind == predicate) {
			return 0, errorf(line, "%s is a .%s where a .%s belongs", o.name, o.reg.typ, t)
		}
		if o.reg.typ.size < t.size {
			return 0, errorf(line, "%s is a .%s, too narrow for .%s", o.name, o.reg.typ, t)
		}
		return o.reg.slot, nil
	}
	return 0, errorf(line, "a register belongs here")
}

func boolBits(v bool) uint64 {
	if v {
		return 1
	}
	return 0
}

func f32(v uint64) float32 { return math.Float32frombits(uint32(v)) }
func f64(v uint64) float64 { return math.Float64frombits(v) }
func b32(v float32) uint64 { return uint64(math.Float32bits(v)) }
func b64(v float64) uint64 { return math.Float64bits(v) }
