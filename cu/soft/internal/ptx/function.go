package ptx

// A function is an entry or a device function.
type function struct {
	name   string
	entry  bool
	line   int
	params []parameter
	result []parameter
	code   []inst
	calls  []*function

	slots    int32    // registers
	preset   []preset // slots that are filled before it begins
	special  []int32  // slots of special registers, and which these are
	which    []*special
	frame    int       // bytes of its local memory, parameters included
	align    int       // of the frame
	declared bool      // only: the body is missing
	number   uint64    // among the module's
	taken    bool      // its address is
	reserves bool      // it, or what it calls, asks for the system's shared memory
	allocas  bool      // it takes local memory as it runs
	alias    *function // that it stands for
	places   []place   // of its instructions, if warps go in step

	maxThreads int    // .maxntid, multiplied; 0 is none
	required   [3]int // .reqntid

	// For an entry: offsets of the shared variables that it, or a function that it
	// calls, uses.
	layout map[*variable]uint64
	static int // bytes of them
}

// A preset is a slot's value before the function begins.
type preset struct {
	slot  int32
	value uint64
	v     *variable // whose address to add, or nil
}

// A parameter is one of a function's, at its place among the others.
type parameter struct {
	variable
	typ typ
}

// function takes an entry or a device function behind its keyword.
func (p *parser) function(entry bool) {
	f := &function{entry: entry, line: p.line(), align: 16}
	if !entry && p.accept("(") {
		f.result = p.result()
	}
	f.name = p.word()
	if p.accept("(") {
		f.params = p.parameters()
	}
	p.bounds(f)
	if f.declared = p.accept(";"); !f.declared {
		p.body(f)
	}
	p.m.add(f)
}

// add records a function. A body replaces a declaration, which calls may refer to
// by then.
func (m *Module) add(f *function) {
	old := m.functions[f.name]
	switch {
	case m.names[f.name] != nil:
		panic(errorf(f.line, "%s is a variable's name, too", f.name))
	case old == nil:
		f.number = uint64(len(m.order))
		m.functions[f.name] = f
		m.order = append(m.order, f)
	case f.declared:
	case old.declared:
		f.number, f.taken = old.number, old.taken
		*old = *f
	default:
		panic(errorf(f.line, "%s is defined twice", f.name))
	}
}

// parameters takes a list behind its parenthesis, and places the parameters.
func (p *parser) parameters() (list []parameter) {
	at := uint64(0)
	for !p.accept(")") {
		if len(list) > 0 {
			p.expect(",")
		}
		q := p.parameter()
		at = alignUp(at, uint64(q.align))
		q.at = at
		at += uint64(q.size)
		failIf(at > maxParams, q.line, "more than %d bytes of parameters", maxParams)
		list = append(list, q)
	}
	return list
}

// result takes a function's result behind its parenthesis: PTX has one at most.
func (p *parser) result() (list []parameter) {
	line := p.line()
	list = p.parameters()
	failIf(len(list) > 1, line, "more than one result")
	return list
}

func (p *parser) parameter() (q parameter) {
	p.expect(".param")
	q.space, q.line = param, p.line()
	d := p.declaration()
	q.typ, q.align = d.typ, d.align
	if p.accept(".ptr") {
		p.pointee()
	}
	q.name = p.word()
	if p.dimensions(&q.variable, d); q.array {
		panic(errorf(q.line, "%s has no length", q.name))
	}
	return q
}

// pointee takes what a parameter points to, which helps only optimisers.
func (p *parser) pointee() {
	_ = p.accept(".global") || p.accept(".const") || p.accept(".local") || p.accept(".shared")
	if !p.accept(".align") {
		return
	}
	p.alignment()
}

func alignUp(n, to uint64) uint64 { return (n + to - 1) &^ (to - 1) }

// bounds takes what a function says about its blocks.
func (p *parser) bounds(f *function) {
	for {
		t := p.peek()
		switch t.text {
		case ".maxntid", ".reqntid":
			p.next()
			dims := p.triple()
			if t.is(".reqntid") {
				f.required = dims
			} else {
				f.maxThreads = dims[0] * dims[1] * dims[2]
			}
		case ".reqnctapercluster", ".explicitcluster", ".blocksareclusters":
			panic(errorf(t.line, "%s is not supported: it is for %s", t.text, clusters))
		case ".minnctapersm", ".maxnreg", ".maxnctapersm", ".maxclusterrank":
			p.next()
			p.integer(1 << 30)
		case ".noreturn":
			p.next()
		case ".pragma":
			p.next()
			p.pragma()
		default:
			return
		}
	}
}

// triple takes one to three numbers.
func (p *parser) triple() (d [3]int) {
	d = [3]int{1, 1, 1}
	for i := range d {
		d[i] = p.integer(1 << 16)
		if !p.accept(",") {
			break
		}
	}
	return d
}

// reachable returns the function and all that it calls, directly or not.
func (f *function) reachable() []*function {
	seen, list := map[*function]bool{f: true}, []*function{f}
	for i := 0; i < len(list); i++ {
		for _, g := range list[i].calls {
			if !seen[g] {
				seen[g] = true
				list = append(list, g)
			}
		}
	}
	return list
}

// reach limits the work of following the calls of all entries.
func (p *parser) reach(f *function) {
	if !f.entry {
		return
	}
	for _, g := range f.reachable() {
		p.reached += 16 + 4*len(g.calls) + len(g.preset)
	}
	failIf(p.reached > maxReached, f.line, "the entries call too many functions")
}

// recursive reports whether the depth of the function's calls is unknown
// beforehand.
func (f *function) recursive() bool {
	under, over := map[*function]bool{}, map[*function]bool{}
	var back func(g *function) bool // a call leads back to what is under way
	back = func(g *function) bool {
		under[g] = true
		for _, h := range g.calls {
			if under[h] || !over[h] && back(h) {
				return true
			}
		}
		under[g], over[g] = false, true
		return false
	}
	return back(f)
}

// layShared places the shared variables that an entry uses: those of the module
// and of its functions side by side, and then what the launch adds.
func (f *function) layShared() {
	if !f.entry {
		return
	}
	f.layout = map[*variable]uint64{}
	var dynamic []*variable
	at, end := uint64(0), uint64(1)
	for _, g := range f.reachable() {
		f.reserves = f.reserves || g.reserves
		for _, q := range g.preset {
			v := q.v
			if v == nil || v.space != shared {
				continue
			}
			if v.array {
				dynamic, end = append(dynamic, v), max(end, uint64(v.align))
				continue
			}
			if _, placed := f.layout[v]; placed {
				continue
			}
			at = alignUp(at, uint64(v.align))
			f.layout[v] = at
			at += uint64(v.size)
			failIf(at > maxShared, f.line, "%s uses more than %d bytes of shared memory", f.name, maxShared)
		}
	}
	at = alignUp(at, end)
	failIf(at > maxShared, f.line, "%s uses more than %d bytes of shared memory", f.name, maxShared)
	f.static = int(at)
	for _, v := range dynamic {
		f.layout[v] = uint64(f.static)
	}
}

// A Kernel describes one entry of a module.
type Kernel struct {
	Name       string
	Params     []Param
	Shared     int    // bytes of static shared memory
	Local      int    // bytes of local memory per thread
	Memory     int    // most bytes that a thread takes: local memory, registers and calls
	Registers  int    // per thread, of 64 bits
	MaxThreads int    // per block; 0 is as many as the device can
	Required   [3]int // dimensions of its blocks; 0 is any
}

// A Param is a kernel's parameter: where it lies among the others, in bytes.
type Param struct{ Offset, Size int }

// ParamBytes returns the size of all parameters.
func (k Kernel) ParamBytes() int {
	if len(k.Params) == 0 {
		return 0
	}
	last := k.Params[len(k.Params)-1]
	return last.Offset + last.Size
}

// Kernel describes a kernel; ok is false if there is none with that name.
func (m *Module) Kernel(name string) (k Kernel, ok bool) {
	f := m.functions[name]
	if f == nil || !f.entry || f.declared {
		return k, false
	}
	k = Kernel{Name: name, Shared: f.static, Registers: int(f.slots), MaxThreads: f.maxThreads, Required: f.required}
	unknown := f.recursive()
	for _, g := range f.reachable() {
		k.Local += g.frame
		k.Memory += g.frame + 8*int(g.slots) + callSize
		unknown = unknown || g.allocas
	}
	if k.Memory > maxStack || unknown {
		k.Memory = maxStack
	}
	for _, q := range f.params {
		k.Params = append(k.Params, Param{int(q.at), q.size})
	}
	return k, true
}
