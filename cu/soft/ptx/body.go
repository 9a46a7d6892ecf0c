package ptx

import (
	"strconv"
	"strings"
)

// maxSlots bounds a function's registers. The real assembler spills them.
const maxSlots = 1 << 16

// A builder makes a function of its body.
type builder struct {
	p       *parser
	f       *function
	scope   *scope
	depth   int
	line    int // of the instruction that is built
	jumps   []jump
	leaves  []int            // instructions that jump to a label of a table
	tables  []*labelTable    // that are used
	presets map[preset]int32 // slots of numbers and addresses
	special map[special]int32

	loose    []loose         // instructions that may be fused
	uses     map[int32]int   // how often a register is read
	writes   map[int32][]int // which instructions write it
	labelled []int           // instructions that have a label
}

// A scope is what is declared between two braces.
type scope struct {
	outer     *scope
	registers map[string]register
	ranges    map[string]registerRange // by prefix
	variables map[string]*variable
	labels    map[string]int32

	prototypes map[string]signature
	tables     map[string]*labelTable
}

// A registerRange is %name<count>, which get slots as they are used.
type registerRange struct {
	prefix string
	count  int
	typ    typ
}

// A jump is a branch to a label that may come later.
type jump struct {
	inst  int
	label string
	scope *scope
	line  int
}

// A labelTable is where brx may jump, for all that use it.
type labelTable struct {
	labels []string
	scope  *scope
	to     []int32
	line   int // of the first that uses it
}

// body takes what is between the braces.
func (p *parser) body(f *function) error {
	b := &builder{p: p, f: f, presets: map[preset]int32{}, special: map[special]int32{}, uses: map[int32]int{}, writes: map[int32][]int{}}
	if err := p.expect("{"); err != nil {
		return err
	}
	if err := b.open(); err != nil {
		return err
	}
	if err := b.placeParameters(); err != nil {
		return err
	}
	for b.depth > 0 {
		if err := b.statement(); err != nil {
			return err
		}
	}
	b.emit(inst{run: runReturn, guard: -1, line: int32(p.line())}) // who falls off the end returns
	b.contract()
	return b.land()
}

// open begins a scope, close ends it.
func (b *builder) open() error {
	if b.depth++; b.depth > maxNesting {
		return errorf(b.p.line(), "braces are nested too deeply")
	}
	b.scope = &scope{outer: b.scope, registers: map[string]register{}, ranges: map[string]registerRange{}, variables: map[string]*variable{}, labels: map[string]int32{},
		prototypes: map[string]signature{}, tables: map[string]*labelTable{}}
	return nil
}

func (b *builder) close() {
	b.depth--
	b.scope = b.scope.outer
}

// placeParameters makes the function's parameters known: an entry's lie in a
// buffer of their own, a device function's in its frame.
func (b *builder) placeParameters() error {
	for _, list := range [][]parameter{b.f.params, b.f.result} {
		for i := range list {
			v := &list[i].variable
			if !b.f.entry {
				b.place(v)
			}
			if err := b.scope.declare(v); err != nil {
				return err
			}
		}
	}
	return nil
}

// declare makes a variable known in the scope.
func (s *scope) declare(v *variable) error {
	if s.variables[v.name] != nil {
		return errorf(v.line, "%s is declared twice", v.name)
	}
	s.variables[v.name] = v
	return nil
}

// place gives a variable room in the function's frame.
func (b *builder) place(v *variable) {
	v.framed = true
	v.at = alignUp(uint64(b.f.frame), uint64(v.align))
	b.f.frame = int(v.at) + v.size
	b.f.align = max(b.f.align, v.align)
}

// statement takes a brace, a label, a directive or an instruction.
func (b *builder) statement() error {
	p := b.p
	t := p.peek()
	switch {
	case p.end():
		return p.expect("}")
	case p.accept("{"):
		return b.open()
	case p.accept("}"):
		b.close()
		return nil
	case p.accept(";"):
		return nil
	case strings.HasPrefix(t.text, "."):
		p.next()
		return b.directive(t)
	case t.isName() && p.at+1 < len(p.tokens) && p.tokens[p.at+1].is(":"):
		p.at += 2
		return b.label(t)
	}
	return b.instruction()
}

// label notes where the code is.
func (b *builder) label(t token) error {
	if _, twice := b.scope.labels[t.text]; twice {
		return errorf(t.line, "the label %s is there twice", t.text)
	}
	if ok, err := b.named(t.text); ok {
		return err
	}
	b.scope.labels[t.text] = int32(len(b.f.code))
	b.labelled = append(b.labelled, len(b.f.code))
	return nil
}

// directive takes one within a body.
func (b *builder) directive(t token) error {
	switch t.text {
	case ".reg":
		return b.registers()
	case ".local", ".param", ".shared":
		return b.declare(spaceNames[t.text[1:]])
	}
	if ok, err := b.p.remark(t); ok {
		return err
	}
	return errorf(t.line, "%s is not supported here", t)
}

// declare takes variables of the function's own.
func (b *builder) declare(s space) error {
	vars, err := b.p.variables(s)
	if err != nil {
		return err
	}
	for _, v := range vars {
		if v.array {
			return errorf(v.line, "%s has no length", v.name)
		}
		if v.size > maxLocal {
			return errorf(v.line, "%s is too large", v.name)
		}
		if s != shared {
			b.place(v)
		}
		if b.f.frame > maxLocal {
			return errorf(v.line, "more than %d bytes of local memory", maxLocal)
		}
		if err := b.scope.declare(v); err != nil {
			return err
		}
	}
	return nil
}

// registers takes a .reg declaration.
func (b *builder) registers() error {
	p := b.p
	t := p.next()
	typ, ok := typeNames[strings.TrimPrefix(t.text, ".")]
	if !ok || !strings.HasPrefix(t.text, ".") {
		return errorf(t.line, "%s is no type of a register that is supported", t)
	}
	for {
		if err := b.declareRegister(typ); err != nil {
			return err
		}
		if !p.accept(",") {
			return p.expect(";")
		}
	}
}

// declareRegister takes one register's name, or that of several.
func (b *builder) declareRegister(typ typ) error {
	p, s := b.p, b.scope
	line := p.line()
	name, err := p.word()
	if err != nil {
		return err
	}
	if !p.accept("<") {
		if _, twice := s.registers[name]; twice {
			return errorf(line, "%s is declared twice", name)
		}
		slot, err := b.newSlot()
		s.registers[name] = register{slot, typ}
		return err
	}
	count, err := p.integer(1 << 31)
	if err != nil {
		return err
	}
	if _, twice := s.ranges[name]; twice {
		return errorf(line, "%s is declared twice", name)
	}
	s.ranges[name] = registerRange{name, count, typ}
	return p.expect(">")
}

// register finds one by its name, in the innermost scope that has it.
func (b *builder) register(name string) (r register, ok bool, err error) {
	for s := b.scope; s != nil; s = s.outer {
		if r, ok := s.registers[name]; ok {
			return r, true, nil
		}
		if rr, ok := s.rangeOf(name); ok {
			slot, err := b.newSlot()
			s.registers[name] = register{slot, rr.typ}
			return s.registers[name], true, err
		}
	}
	return r, false, nil
}

// rangeOf finds the range that a register is of.
func (s *scope) rangeOf(name string) (rr registerRange, ok bool) {
	const digits = 10 // no number has more
	for n := len(name); n > max(0, len(name)-digits) && isDigit(name[n-1]); n-- {
		if rr, ok = s.ranges[name[:n-1]]; ok && rr.has(name) {
			return rr, true
		}
	}
	return rr, false
}

func (r registerRange) has(name string) bool {
	digits, ok := strings.CutPrefix(name, r.prefix)
	if !ok || digits == "" || !isDigit(digits[0]) || len(digits) > 1 && digits[0] == '0' {
		return false
	}
	n, err := strconv.Atoi(digits)
	return err == nil && n < r.count
}

// variable finds one by its name, or nil.
func (b *builder) variable(name string) *variable {
	for s := b.scope; s != nil; s = s.outer {
		if v := s.variables[name]; v != nil {
			return v
		}
	}
	return b.p.m.names[name]
}

// newSlot makes one more register.
func (b *builder) newSlot() (int32, error) {
	if b.f.slots == maxSlots {
		return 0, errorf(b.p.line(), "more than %d registers", maxSlots)
	}
	b.f.slots++
	return b.f.slots - 1, nil
}

// presetSlot is a register that holds a number, or an address.
func (b *builder) presetSlot(value uint64, v *variable) (int32, error) {
	key := preset{value: value, v: v}
	if s, ok := b.presets[key]; ok {
		return s, nil
	}
	s, err := b.newSlot()
	b.presets[key] = s
	b.f.preset = append(b.f.preset, preset{s, value, v})
	return s, err
}

// specialSlot is a register that holds a special one, of those that stay the same
// while a thread runs.
func (b *builder) specialSlot(which special) (int32, error) {
	if s, ok := b.special[which]; ok {
		return s, nil
	}
	b.f.reserves = b.f.reserves || which == reservedShared
	s, err := b.newSlot()
	b.special[which] = s
	b.f.special, b.f.which = append(b.f.special, s), append(b.f.which, which)
	return s, err
}

// instruction takes one.
func (b *builder) instruction() error {
	p := b.p
	b.line = p.line()
	guard, not, err := b.guard()
	if err != nil {
		return err
	}
	t := p.next()
	b.line = t.line
	if !t.isName() {
		return errorf(t.line, "unexpected %s where an instruction belongs", t)
	}
	o := newOpcode(t)
	build, ok := table[o.name]
	if !ok || o.ofCluster() {
		return o.refusal()
	}
	first := len(b.f.code)
	if err := build(b, o); err != nil {
		return err
	}
	if err := o.leftOver(); err != nil {
		return err
	}
	for i := first; i < len(b.f.code); i++ {
		c := &b.f.code[i]
		c.guard, c.not, c.line = guard, not, int32(t.line)
	}
	b.loosely(o, first)
	return p.expect(";")
}

// guard takes the predicate that an instruction depends on, if it does.
func (b *builder) guard() (slot int32, not bool, err error) {
	if !b.p.accept("@") {
		return -1, false, nil
	}
	g, err := b.p.scalar(b)
	if err == nil && (g.what != isRegister || g.reg.typ.kind != predicate) {
		err = errorf(b.line, "a guard has to be a predicate")
	}
	return g.reg.slot, g.not, err
}

// emit appends an instruction.
func (b *builder) emit(i inst) { b.f.code = append(b.f.code, i) }

// land resolves the jumps, and the tables of those that have some.
func (b *builder) land() (err error) {
	for _, j := range b.jumps {
		if b.f.code[j.inst].to, err = j.scope.place(j.label, j.line); err != nil {
			return err
		}
	}
	for _, t := range b.tables {
		for k, label := range t.labels {
			if t.to[k], err = t.scope.place(label, t.line); err != nil {
				return err
			}
		}
	}
	return nil
}

// place finds a label's place in the code, in the innermost scope that has it.
func (s *scope) place(label string, line int) (int32, error) {
	for ; s != nil; s = s.outer {
		if to, ok := s.labels[label]; ok {
			return to, nil
		}
	}
	return 0, errorf(line, "there is no label %s", label)
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
	return b.sourceAs(o, t, typ.holds)
}

// wideSource is source for registers that may be wider.
func (b *builder) wideSource(o operand, t typ) (int32, error) {
	return b.sourceAs(o, t, typ.holdsWide)
}

func (b *builder) sourceAs(o operand, t typ, holds func(r, t typ) bool) (int32, error) {
	switch {
	case o.not:
		return 0, errorf(b.line, "! does not belong before %s", o.name)
	case o.pair != nil:
		return 0, errorf(b.line, "| does not belong here")
	}
	switch o.what {
	case isRegister:
		b.uses[o.reg.slot]++
		return o.reg.slot, b.fits(o, t, holds)
	case isSpecial:
		if o.special.changes() {
			return 0, errorf(b.line, "%s can only be moved", o.name)
		}
		if err := b.fits(o, t, holds); err != nil {
			return 0, err
		}
		return b.specialSlot(o.special)
	case isInteger, isFloat:
		return b.constant(o, t)
	case isSymbol:
		return b.address(o, t)
	}
	return 0, errorf(b.line, "an operand of this kind does not belong here")
}

// fits wants a register that can be an operand of the type.
func (b *builder) fits(o operand, t typ, holds func(r, t typ) bool) error {
	if !holds(o.reg.typ, t) {
		return errorf(b.line, "%s is a .%s register where a .%s belongs", o.name, o.reg.typ, t)
	}
	return nil
}

// constant is the slot of a number.
func (b *builder) constant(o operand, t typ) (int32, error) {
	if t.kind == predicate {
		return b.presetSlot(boolBits(o.bits != 0), nil)
	}
	v, err := o.as(t, b.line)
	if err != nil {
		return 0, err
	}
	return b.presetSlot(v, nil)
}

// address is the slot of a variable's address within its space, which only
// shared and local ones have fit into 32 bits.
func (b *builder) address(o operand, t typ) (int32, error) {
	switch {
	case o.v == nil:
		return b.functionAddress(o, t)
	case t.kind == float || t.kind == predicate || t.size < 4 || t.size == 4 && (o.v.space == global || o.v.space == constant):
		return 0, errorf(b.line, "the address of %s does not fit .%s", o.name, t)
	}
	return b.presetSlot(o.bits, o.v)
}

// functionAddress is the slot of a function's address.
func (b *builder) functionAddress(o operand, t typ) (int32, error) {
	f := b.p.m.functions[o.name]
	if f == nil || f.entry || o.bits != 0 || t.size != 8 || t.kind == float {
		return 0, errorf(b.line, "there is no variable %s", o.name)
	}
	b.p.m.take(f)
	return b.presetSlot(f.address(), nil)
}

// target is the slot of an operand that is written.
func (b *builder) target(o operand, t typ) (int32, error) { return b.targetAs(o, t, typ.holds) }

// wideTarget is target for registers that may be wider.
func (b *builder) wideTarget(o operand, t typ) (int32, error) {
	return b.targetAs(o, t, typ.holdsWide)
}

func (b *builder) targetAs(o operand, t typ, holds func(r, t typ) bool) (int32, error) {
	switch {
	case o.not || o.pair != nil:
		return 0, errorf(b.line, "a register belongs here")
	case o.what == isSink:
		return b.newSlot()
	case o.what == isRegister:
		b.writes[o.reg.slot] = append(b.writes[o.reg.slot], len(b.f.code))
		return o.reg.slot, b.fits(o, t, holds)
	}
	return 0, errorf(b.line, "a register belongs here")
}
