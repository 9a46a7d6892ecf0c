package main

import (
	"fmt"
	"go/token"
	"slices"
	"strings"
)

// writeFunctions writes one method of Caller per function of CUDA 13.0.
func writeFunctions(a *abi, w *writer) error { return writeMethods(a, w, a.Functions) }

// writeOlder does the same for the earlier ABIs.
func writeOlder(a *abi, w *writer) error { return writeMethods(a, w, a.Older) }

func writeMethods(a *abi, w *writer, functions []function) error {
	w.p("package sys\n\nimport (\n\"runtime\"\n\"unsafe\"\n)\n")
	for _, f := range functions {
		if err := writeMethod(a, w, f); err != nil {
			return fmt.Errorf("%s: %w", f.Symbol, err)
		}
	}
	return nil
}

func writeMethod(a *abi, w *writer, f function) error {
	names, types := make([]string, len(f.Params)), make([]string, len(f.Params))
	list := make([]string, len(f.Params))
	placed := false // by-value structs and floats are placed by the platform's rule
	for i, p := range f.Params {
		g, err := a.goType(p.Type, f.Symbol, p.Name)
		if err != nil {
			return err
		}
		names[i], types[i] = paramName(p.Name), g
		list[i] = names[i] + " " + g
		placed = placed || a.isLayout(p.Type) || g == "float32"
	}
	if err := a.placeable(f, types); err != nil {
		return err
	}
	writeComment(w, f)
	w.p("func (c Caller) %s(%s) CUresult {", f.method(), strings.Join(list, ", "))
	if placed {
		writePlaced(a, w, f, names, types)
	} else {
		writePlain(w, f, names, types)
	}
	w.p("}\n")
	return nil
}

// writePlain writes the body of a method whose arguments are words.
func writePlain(w *writer, f function, names, types []string) {
	var keep []string
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = word(name, types[i])
		if isPointer(types[i]) {
			keep = append(keep, name)
		}
	}
	typ, call := "words", "call"
	if len(names) > wordsLen {
		typ = fmt.Sprintf("[%d]uintptr", len(names))
	}
	if f.Name == "cuCtxCreate" {
		call = "callAndPop"
	}
	w.p("var w %s", typ)
	for i, v := range values {
		w.p("w[%d] = %s", i, v)
	}
	if keep == nil {
		w.p("return c.%s(fn%s, w[:%d])", call, f.method(), len(names))
		return
	}
	w.p("r := c.%s(fn%s, w[:%d])", call, f.method(), len(names))
	for _, name := range keep {
		w.p("runtime.KeepAlive(%s)", name)
	}
	w.p("return r")
}

// wordsLen is the length of cu/sys's words.
const wordsLen = 8

// writePlaced writes the body of a method with floats or structs by value.
func writePlaced(a *abi, w *writer, f function, names, types []string) {
	w.p("p := newPlaced()")
	for i, p := range f.Params {
		w.p("%s", place(a, names[i], types[i], p.Type))
	}
	w.p("return c.callPlaced(p, fn%s)", f.method())
}

// placeable refuses arguments that the crossing has no rule for.
func (a *abi) placeable(f function, types []string) error {
	floats := 0
	for i, p := range f.Params {
		if types[i] == "float32" {
			floats++
		}
		s, byValue := a.isStruct(p.Type)
		switch {
		case types[i] == "float64":
			return fmt.Errorf("%s is a double", p.Name)
		case floats > 2:
			return fmt.Errorf("%s is one float more than a frame holds", p.Name)
		case byValue && s.Align > 8:
			return fmt.Errorf("%s is a struct by value aligned to %d bytes", p.Name, s.Align)
		case byValue && slices.ContainsFunc(s.Fields, func(f field) bool { return !a.plain(f) }):
			return fmt.Errorf("%s is a struct by value with floats or pointers in it", p.Name)
		}
	}
	return nil
}

// plain reports whether a field consists of integers only.
func (a *abi) plain(f field) bool {
	if strings.Contains(f.Type, "*") || strings.HasPrefix(f.Type, "float") || strings.HasPrefix(f.Type, "double") {
		return false
	}
	fields := f.Fields
	if s, ok := a.isStruct(f.Type); ok {
		fields = s.Fields
	}
	return !slices.ContainsFunc(fields, func(f field) bool { return !a.plain(f) })
}

func writeComment(w *writer, f function) {
	w.p("// %s calls\n//\n//\t%s\n//", f.method(), f.prototype())
	if f.Since == 0 {
		w.p("// which the header marks with no version.")
	} else {
		w.p("// which came with CUDA %s.", version(f.Since))
	}
	if f.Name == "cuCtxCreate" {
		w.p("// The new context is not left current: it is popped in the same crossing.")
	}
	if i := slices.IndexFunc(f.Params, func(p param) bool { return slices.Contains(opaqueLists, p.Name) }); i >= 0 {
		w.p("// %s is a list of values; what the addresses among them point to must not\n// be on the stack, and the caller keeps it alive.", paramName(f.Params[i].Name))
	}
	if f.Deprecated {
		w.p("// The header of CUDA 13.0 marks it as deprecated.")
	}
}

func isPointer(goType string) bool {
	return strings.HasPrefix(goType, "*") || goType == "unsafe.Pointer"
}

// pointer returns the expression of a pointer without its type.
func pointer(name, goType string) string {
	if goType == "unsafe.Pointer" {
		return name
	}
	return "unsafe.Pointer(" + name + ")"
}

// word returns the expression of an argument word.
func word(name, goType string) string {
	switch {
	case isPointer(goType):
		return "address(" + pointer(name, goType) + ")"
	case goType == "uintptr":
		return name
	}
	return "uintptr(" + name + ")"
}

// place returns the statement that lays out one argument.
func place(a *abi, name, goType, cType string) string {
	switch s, layout := a.isStruct(cType); {
	case layout:
		return fmt.Sprintf("p.placeValue(unsafe.Pointer(&%s), %d)", name, s.Size)
	case goType == "float32":
		return fmt.Sprintf("p.placeFloat(%s)", name)
	case isPointer(goType):
		return fmt.Sprintf("p.placePointer(%s)", pointer(name, goType))
	}
	return fmt.Sprintf("p.placeWord(%s)", word(name, goType))
}

// paramName keeps a C parameter's name where Go allows it.
func paramName(c string) string {
	switch {
	case slices.Contains([]string{"c", "w", "r", "p", "unsafe", "runtime"}, c) || token.IsKeyword(c):
		return c + "_"
	}
	return c
}

// writeTable writes what is known of each function: its symbol, its version, and
// how trace prints its arguments.
func writeTable(a *abi, w *writer) error {
	w.p("package sys\n\nconst (")
	for i, f := range a.all() {
		if i == 0 {
			w.p("fn%s funcID = iota", f.method())
			continue
		}
		w.p("fn%s", f.method())
	}
	w.p("numFunctions = %d\n)\n", len(a.all()))
	w.p("var functions = [numFunctions]function{")
	for _, f := range a.all() {
		w.p("fn%s: {%q, %d, %q},", f.method(), f.Symbol, f.Since, traceKinds(a, f))
	}
	w.p("}\n")
	w.p("// enumNames gives the name of an enum's value, by the enum's Go name.")
	w.p("var enumNames = map[string]func(uint32) string{")
	for _, tag := range a.Enums.keys {
		name := a.canonical("enum " + tag)
		w.p("%q: func(v uint32) string { return %s(v).String() },", name, name)
	}
	w.p("}")
	return nil
}

// traceKinds spells how trace prints each argument: x hexadecimal, u and d
// decimal, s a C string, f a float, v a struct by value, e an enum, whose name
// follows.
func traceKinds(a *abi, f function) string {
	kinds := make([]string, len(f.Params))
	for i, p := range f.Params {
		kinds[i] = traceKind(a, p.Type)
	}
	return strings.Join(kinds, " ")
}

func traceKind(a *abi, c string) string {
	g := primitives[strings.TrimSpace(c)]
	under := primitives[a.Typedefs.m[a.root(c)]]
	switch {
	case c == "const char *":
		return "s"
	case a.isEnum(c):
		return "e" + a.declaredName(c)
	case a.isLayout(c):
		return "v"
	case g == "float32":
		return "f"
	case g == "int32" || under == "int32":
		return "d"
	case g != "":
		return "u"
	}
	return "x"
}
