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
	special map[*special]int32

	steps          []step
	read, written  []int32         // registers, by the step that is built
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
func (p *parser) body(f *function) {
	b := &builder{p: p, f: f, presets: map[preset]int32{}, special: map[*special]int32{}, writesTo: map[int32][]int{}}
	b.inStep = p.stepsHere()
	p.expect("{")
	b.open()
	b.placeParameters()
	for b.depth > 0 {
		b.statement()
	}
	b.emit(inst{run: runReturn, guard: -1, line: int32(p.line())}) // a thread that reaches the end returns
	b.land()
	if b.contract(); !b.inStep {
		return
	}
	b.rank()
}

// open begins a scope, close ends it.
func (b *builder) open() {
	b.depth++
	failIf(b.depth > maxNesting, b.p.line(), "braces are nested too deeply")
	b.scope = &scope{outer: b.scope, registers: map[string]register{}, ranges: map[string]registerRange{}, variables: map[string]*variable{}, labels: map[string]int32{},
		prototypes: map[string]signature{}, tables: map[string]*labelTable{}}
}

func (b *builder) close() {
	b.depth--
	b.scope = b.scope.outer
}

// placeParameters makes the function's parameters known: an entry's lie in a
// buffer of their own, a device function's in its frame.
func (b *builder) placeParameters() {
	for _, list := range [][]parameter{b.f.params, b.f.result} {
		for i := range list {
			v := &list[i].variable
			if !b.f.entry {
				b.place(v)
			}
			b.scope.declare(v)
		}
	}
}

// declare makes a variable known in the scope.
func (s *scope) declare(v *variable) {
	failIf(s.variables[v.name] != nil, v.line, "%s is declared twice", v.name)
	s.variables[v.name] = v
}

// place gives a variable room in the function's frame.
func (b *builder) place(v *variable) {
	v.framed = true
	v.at = alignUp(uint64(b.f.frame), uint64(v.align))
	b.f.frame = int(v.at) + v.size
	b.f.align = max(b.f.align, v.align)
}

// statement takes a brace, a label, a directive or an instruction.
func (b *builder) statement() {
	p := b.p
	t := p.peek()
	switch {
	case p.end():
		p.expect("}")
	case p.accept("{"):
		b.open()
	case p.accept("}"):
		b.close()
	case p.accept(";"):
	case strings.HasPrefix(t.text, "."):
		p.next()
		b.directive(t)
	case p.isLabel():
		p.next()
		p.next()
		b.label(t)
	default:
		b.instruction()
	}
}

// label records where the code is.
func (b *builder) label(t token) {
	if _, twice := b.scope.labels[t.text]; twice {
		panic(errorf(t.line, "the label %s is there twice", t.text))
	}
	if b.named(t.text) {
		return
	}
	b.scope.labels[t.text] = int32(len(b.f.code))
	b.labelled = append(b.labelled, len(b.f.code))
	if b.inStep { // a loop may begin here, whose laps are counted
		b.emit(inst{run: runNothing, guard: -1, line: int32(t.line)})
	}
}

// directive takes one within a body.
func (b *builder) directive(t token) {
	switch t.text {
	case ".reg":
		b.registers()
	case ".local", ".param", ".shared":
		b.declare(spaceNames[t.text[1:]])
	default:
		failIf(!b.p.remark(t), t.line, "%s is not supported here", t)
	}
}

// declare takes variables of the function's own.
func (b *builder) declare(s space) {
	vars := b.p.variables(s)
	for _, v := range vars {
		failIf(v.array, v.line, "%s has no length", v.name)
		failIf(v.size > maxLocal, v.line, "%s is too large", v.name)
		if s != shared {
			b.place(v)
		}
		failIf(b.f.frame > maxLocal, v.line, "more than %d bytes of local memory", maxLocal)
		b.scope.declare(v)
	}
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
func (b *builder) instruction() {
	p := b.p
	b.line = p.line()
	guard, not := b.guard()
	t := p.next()
	b.line = t.line
	if !t.isName() {
		panic(errorf(t.line, "unexpected %s where an instruction belongs", t))
	}
	o := newOpcode(t)
	build, ok := table()[o.name]
	if !ok || o.ofCluster() {
		panic(o.refusal())
	}
	o.refuseIf(guard >= 0 && unguarded[o.name], "with a guard: the GPU's assembler leaves that out")
	first := len(b.f.code)
	build(b, o)
	o.leftOver()
	for i := first; i < len(b.f.code); i++ {
		c := &b.f.code[i]
		c.guard, c.not, c.line = guard, not, int32(t.line)
	}
	if guard < 0 && final[o.name] {
		b.final = append(b.final, len(b.f.code)-1)
	}
	b.loosely(o, first)
	b.steps = append(b.steps, newStep(b, o, first, guard >= 0))
	p.expect(";")
}

// guard takes the predicate that an instruction depends on, if it does.
func (b *builder) guard() (slot int32, not bool) {
	if !b.p.accept("@") {
		return -1, false
	}
	g := b.p.scalar(b)
	failIf(g.what != isRegister || g.reg.typ.kind != predicate, b.line, "a guard has to be a predicate")
	b.read = append(b.read, g.reg.slot)
	return g.reg.slot, g.not
}

// emit appends an instruction.
func (b *builder) emit(i inst) { b.f.code = append(b.f.code, i) }
