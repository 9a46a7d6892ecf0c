package ptx

import "strings"

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

	steps          []step
	read, written  []int32         // registers, by steps
	writesTo       map[int32][]int // which instructions write a register
	labelled       []int           // instructions that have a label
	loose          map[int]loose   // steps that may be fused
	products, sums bool            // there are such steps
	copies         [][2]int32      // registers for operands of products

	inStep bool  // threads of a warp keep in step
	final  []int // instructions behind which nothing comes
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

// body takes what is between the braces.
func (p *parser) body(f *function) error {
	b := &builder{p: p, f: f, presets: map[preset]int32{}, special: map[special]int32{}, writesTo: map[int32][]int{}}
	b.inStep = p.stepsHere()
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
	if err := b.land(); err != nil {
		return err
	}
	if b.contract(); !b.inStep {
		return nil
	}
	return b.rank()
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
	case p.isLabel():
		p.next()
		p.next()
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
	if b.inStep { // a loop may begin here, whose laps are counted
		b.emit(inst{run: runNothing, guard: -1, line: int32(t.line)})
	}
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

// variable finds one by its name, or nil.
func (b *builder) variable(name string) *variable {
	for s := b.scope; s != nil; s = s.outer {
		if v := s.variables[name]; v != nil {
			return v
		}
	}
	return b.p.m.names[name]
}

// final are the instructions that nothing comes behind, if they run.
var final = map[string]bool{"bra": true, "brx": true, "ret": true, "exit": true, "trap": true}

// unguarded are instructions of which a GPU's assembler makes others, without the guard.
var unguarded = map[string]bool{"testp": true, "vadd4": true}

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
	build, ok := table()[o.name]
	if !ok || o.ofCluster() {
		return o.refusal()
	}
	if guard >= 0 && unguarded[o.name] {
		return o.refuse("with a guard: the GPU's assembler leaves that out")
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
	if guard < 0 && final[o.name] {
		b.final = append(b.final, len(b.f.code)-1)
	}
	b.loosely(o, first)
	b.steps = append(b.steps, newStep(b, o, first, guard >= 0))
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
	b.read = append(b.read, g.reg.slot)
	return g.reg.slot, g.not, err
}

// emit appends an instruction.
func (b *builder) emit(i inst) { b.f.code = append(b.f.code, i) }
