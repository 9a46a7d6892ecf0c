package ptx

import (
	"fmt"
	"slices"
	"strings"
)

// An inst is one instruction, ready to run. Its operands are slots of the
// thread's registers; what was a number or a special register in the text has a
// slot too, filled before the function begins.
type inst struct {
	run   run
	guard int32 // slot of the predicate that it depends on, or -1
	not   bool  // it runs when that is false
	line  int32
	to    int32 // where a branch goes

	d, a, b, c int32
	vec        []int32 // slots of a vector; -1 for the sink
	imm        uint64  // an offset, or what else is known early
}

// A run does what an instruction says.
type run func(t *thread, i *inst)

// An opcode is an instruction's name in parts. Its builder takes the
// modifiers that it knows, and what is left over is refused.
type opcode struct {
	text  string // as written
	name  string // before the first dot
	mods  []string
	types []typ // in order
	used  int   // how many of the types were asked for
	line  int
}

func newOpcode(t token) *opcode {
	parts := strings.Split(t.text, ".")
	o := &opcode{text: t.text, name: parts[0], line: t.line}
	for _, p := range parts[1:] {
		if typ, ok := opcodeType(p); ok {
			o.types = append(o.types, typ)
		} else {
			o.mods = append(o.mods, p)
		}
	}
	return o
}

// take takes one of the modifiers, and reports whether it was there.
func (o *opcode) take(names ...string) bool { return o.takeOne(names...) != "" }

// takeOne is take, and returns the modifier, or nothing.
func (o *opcode) takeOne(names ...string) string {
	for _, n := range names {
		if i := slices.Index(o.mods, n); i >= 0 {
			o.mods = slices.Concat(o.mods[:i], o.mods[i+1:])
			return n
		}
	}
	return ""
}

// has reports whether one of the modifiers is there, and leaves it.
func (o *opcode) has(names ...string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(o.mods, n) })
}

// oneOf takes the first modifier that a table has, and returns its entry.
func oneOf[T any](o *opcode, table map[string]T) (v T, found bool) {
	for i, m := range o.mods {
		if v, found = table[m]; found {
			o.mods = append(o.mods[:i:i], o.mods[i+1:]...)
			return v, true
		}
	}
	return v, false
}

// refuse returns the error for an instruction that is known, but not in this form.
func (o *opcode) refuse(why string, args ...any) error {
	return errorf(o.line, "%s is not supported: %s", o.text, fmt.Sprintf(why, args...))
}

// refuseIf panics with such an error, if the form is a bad one.
func (o *opcode) refuseIf(bad bool, why string, args ...any) {
	if bad {
		panic(o.refuse(why, args...))
	}
}

// typ returns the n-th type, and refuses an opcode that has fewer.
func (o *opcode) typ(n int) typ {
	if o.has("b128") {
		panic(o.refuse("registers have up to 64 bits"))
	}
	if n >= len(o.types) {
		panic(errorf(o.line, "%s: a type is missing", o.text))
	}
	o.used = max(o.used, n+1)
	return o.types[n]
}

// only takes the opcode's first type, which has to be one of these.
func (o *opcode) only(types ...typ) typ {
	t := o.typ(0)
	if !slices.Contains(types, t) {
		panic(o.refuse("with .%s", t))
	}
	return t
}

// row returns what a table has for a type, and refuses others.
func row[T any](o *opcode, table map[typ]T, t typ) T {
	v, ok := table[t]
	if !ok {
		panic(o.refuse("not with .%s", t))
	}
	return v
}

// leftOver refuses modifiers and types that the builder has not taken.
func (o *opcode) leftOver() {
	if len(o.mods) > 0 {
		panic(o.refuse(".%s is not known", strings.Join(o.mods, ".")))
	}
	if len(o.types) > o.used {
		panic(o.refuse("a type too many"))
	}
}
