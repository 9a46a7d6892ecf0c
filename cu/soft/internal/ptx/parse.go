package ptx

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Module is what a PTX text declares, checked. It does not change, and may be
// used by several goroutines.
type Module struct {
	Version   string // of PTX: 7.4
	Target    string // sm_75
	functions map[string]*function
	order     []*function
	variables []*variable // of the global and constant spaces
	names     map[string]*variable
	pointed   *function // calls all functions whose addresses are taken
}

// Parse reads a module, PTX 3.0 to 9.x. Errors are *[Error]. As an optimising assembler
// does, it makes one instruction of a product and a sum that say nothing of rounding.
func Parse(text string) (*Module, error) { return parse(text, false) }

// ParseUnoptimised is Parse for an assembler that is told to optimise nothing.
func ParseUnoptimised(text string) (*Module, error) { return parse(text, true) }

// parse recovers from the panics with an *Error by which parser and builders refuse a text, as
// text/template's parser does.
func parse(text string, debug bool) (m *Module, err error) {
	p := &parser{debug: debug, lexer: lexer{text: text, line: 1}, last: 1, m: &Module{functions: map[string]*function{}, names: map[string]*variable{}, pointed: &function{}}}
	defer func() {
		if e := recover(); e != nil {
			bad, ok := e.(*Error)
			if !ok {
				panic(e)
			}
			m, err = nil, bad
		}
		if p.lexer.err != nil { // of which others follow
			m, err = nil, p.lexer.err
		}
	}()
	p.parse()
	return p.m, nil
}

func (p *parser) parse() {
	p.header()
	for !p.end() {
		p.directive()
	}
	p.finish()
}

// Is reports whether a text begins like PTX, whatever follows.
func Is(text string) bool {
	l := lexer{text: text}
	l.skip()
	return strings.HasPrefix(l.text[l.at:], ".version")
}

type parser struct {
	lexer    lexer
	ahead    [2]token // that come next
	have     int      // of these
	last     int      // line of the token before
	m        *Module
	external bool     // .extern stands before what comes
	debug    bool     // nothing is to be optimised
	initial  int      // bytes of all initial values
	zeros    int      // bytes of them that the text leaves out
	reached  int      // steps to find what the entries call
	ways     int      // of jumps by tables, where warps keep in step
	links    int      // of them, in functions that have products and sums
	aliases  []func() // what needs all names, to be done first
	later    []func() // what needs all names
}

// reads has n tokens ahead, and reports whether there are so many.
func (p *parser) reads(n int) bool {
	for ; p.have < n; p.have++ {
		t, ok := p.lexer.next()
		if !ok {
			return false
		}
		p.ahead[p.have] = t
	}
	return true
}

func (p *parser) end() bool { return !p.reads(1) }

func (p *parser) peek() token {
	if p.end() {
		return token{line: p.last}
	}
	return p.ahead[0]
}

// isLabel reports whether the next token is a name with a colon behind it.
func (p *parser) isLabel() bool { return p.reads(2) && p.ahead[0].isName() && p.ahead[1].is(":") }

func (p *parser) next() token {
	t := p.peek()
	if p.have > 0 {
		p.ahead[0] = p.ahead[1]
		p.have--
	}
	p.last = t.line
	return t
}

// line returns where the parser is.
func (p *parser) line() int { return p.peek().line }

func (p *parser) accept(s string) bool {
	if p.peek().is(s) {
		p.next()
		return true
	}
	return false
}

func (p *parser) expect(s string) {
	if t := p.next(); !t.is(s) {
		panic(errorf(t.line, "unexpected %s where %q belongs", t, s))
	}
}

// quoted takes a string.
func (p *parser) quoted(what string) {
	if t := p.next(); !t.isString() {
		panic(errorf(t.line, "unexpected %s where %s belongs", t, what))
	}
}

// list calls item for each of a list with commas between, up to a semicolon.
func (p *parser) list(item func()) {
	for item(); p.accept(","); item() {
	}
	p.expect(";")
}

// word takes a name that the text gives to something.
func (p *parser) word() string {
	t := p.next()
	if !t.isName() {
		panic(errorf(t.line, "unexpected %s where a name belongs", t))
	}
	return t.text
}

// integer takes a whole number of at most limit.
func (p *parser) integer(limit uint64) int {
	t := p.next()
	v, err := strconv.ParseUint(t.text, 0, 64)
	if err != nil || v > limit {
		panic(errorf(t.line, "%s: want a number of at most %d", t, limit))
	}
	return int(v)
}

// header takes what every module begins with.
func (p *parser) header() {
	failIf(!p.accept(".version"), p.line(), "no .version: this is no PTX")
	p.version()
	p.expect(".target")
	p.target()
}

// The versions of PTX that are known: 3 is the first with the calls and parameters of
// those after it.
const firstVersion, lastVersion = 3, 9

func (p *parser) version() {
	t := p.next()
	major, minor, _ := strings.Cut(t.text, ".")
	n, err := strconv.Atoi(major)
	_, bad := strconv.Atoi(minor)
	failIf(err != nil || bad != nil, t.line, "%s is no version", t)
	if n < firstVersion || n > lastVersion {
		panic(&Error{Line: t.line, Text: "PTX " + t.text + " is not supported, but 3 to 9", Newer: n > lastVersion})
	}
	p.m.Version = t.text
}

// target takes the architecture, which any will do for, and options that change
// nothing.
func (p *parser) target() {
	for {
		t := p.next()
		switch {
		case strings.HasPrefix(t.text, "sm_") && p.m.Target == "":
			p.m.Target = t.text
		case t.is("debug"):
			p.debug = true
		case t.is("texmode_unified"), t.is("texmode_independent"):
		default:
			panic(errorf(t.line, "the target %s is not supported", t))
		}
		if p.accept(",") {
			continue
		}
		failIf(p.m.Target == "", t.line, "no architecture in .target")
		return
	}
}

// directive takes one of the module's.
func (p *parser) directive() {
	t := p.next()
	switch t.text {
	case ".address_size":
		failIf(p.integer(64) != 64, t.line, "only 64-bit addresses are supported")
	case ".visible", ".weak", ".common", ";": // there is one module, and the names in it are its own
	case ".extern":
		p.external = true
	case ".entry", ".func":
		p.external = false
		p.function(t.is(".entry"))
	case ".global", ".const", ".shared":
		p.globals(spaceNames[t.text[1:]])
		p.external = false
	case ".alias":
		p.alias()
	default:
		failIf(!p.remark(t), t.line, "%s is not supported here", t)
	}
}

// remark takes a directive that has no effect on the program: debugging information and advice.
func (p *parser) remark(t token) (ok bool) {
	switch t.text {
	case ".file":
		p.file()
	case ".loc":
		p.location()
	case ".pragma":
		p.pragma()
	case ".section":
		p.section()
	default:
		return false
	}
	return true
}

// file takes .file number "name" [, time, size].
func (p *parser) file() {
	p.integer(1 << 32)
	p.quoted("the name of a file")
	for p.accept(",") {
		p.integer(1<<63 - 1)
	}
}

// location takes .loc file line column [, function_name label, inlined_at file
// line column].
func (p *parser) location() {
	p.place()
	for p.accept(",") {
		switch t := p.next(); t.text {
		case "function_name":
			p.word()
			p.plus()
		case "inlined_at":
			p.place()
		default:
			panic(errorf(t.line, "unexpected %s in .loc", t))
		}
	}
}

// place takes a file, a line and a column.
func (p *parser) place() {
	for range 3 {
		p.integer(1 << 32)
	}
}

// pragma takes strings that advise the assembler.
func (p *parser) pragma() {
	p.list(func() { p.quoted("a string") })
}

// section takes debugging information.
func (p *parser) section() {
	for !p.end() && !p.peek().is("{") {
		p.next()
	}
	for !p.end() {
		if p.next().is("}") {
			return
		}
	}
	p.expect("}")
}

// finish does what needed all names.
func (p *parser) finish() {
	for _, f := range append(p.aliases, p.later...) {
		f()
	}
	for _, v := range p.m.variables {
		p.m.resolve(v)
	}
	for _, f := range p.m.order {
		p.reach(f)
		f.layShared()
	}
	p.m.checkSizes()
}

// Architecture returns 75 for sm_75, and 90 for sm_90a; 0 is an unknown one.
func (m *Module) Architecture() (n int) {
	fmt.Sscanf(m.Target, "sm_%d", &n)
	return n
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
