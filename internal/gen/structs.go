package main

import (
	"fmt"
	"strings"
)

// writeStructs declares every struct and union with explicit padding, and asserts
// sizes and offsets at compile time. An anonymous struct is named after its
// place; a union is words of the right size, with one method per member that
// returns a pointer to it.
func writeStructs(a *abi, w *writer) error {
	w.p("package sys\n\nimport (\n\"structs\"\n\"unsafe\"\n)\n")
	for _, tag := range a.Structs.keys {
		s := a.Structs.m[tag]
		l := layouter{abi: a, w: w, typ: a.structName(tag), tag: tag}
		if err := l.write(s.Kind, s.Size, s.Align, s.Fields); err != nil {
			return fmt.Errorf("%s: %w", tag, err)
		}
	}
	return nil
}

// A layouter writes one type, and the types of its anonymous members after it.
type layouter struct {
	*abi
	w     *writer
	typ   string // Go name
	tag   string // C tag, for the comment
	later []func() error
	body  []string // fields
	check []string // offset assertions
	funcs []string // accessors of union members
	at    int      // bytes written so far
	base  int      // offset of this type within its outermost parent
}

func (l *layouter) write(kind string, size, align int, fields []field) error {
	if kind == "union" {
		l.union("", field{Offset: l.base, Size: size, Fields: fields}, align)
	} else {
		for _, f := range fields {
			if err := l.field(f); err != nil {
				return err
			}
		}
	}
	l.pad(size)
	l.emit(kind, size, align)
	for _, f := range l.later {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (l *layouter) emit(kind string, size, align int) {
	note := ""
	if align > 8 {
		note = fmt.Sprintf(" C aligns it to %d bytes; Go cannot, so the caller does.", align)
	}
	l.w.p("// %s is the C %s %s, %d bytes.%s", l.typ, kind, l.tag, size, note)
	l.w.p("type %s struct {\n_ structs.HostLayout\n%s\n}\n", l.typ, strings.Join(l.body, "\n"))
	l.w.p("var (\n_ = [1]struct{}{}[unsafe.Sizeof(%s{})-%d]\n%s\n)\n", l.typ, size, strings.Join(l.check, "\n"))
	l.w.p("%s", strings.Join(l.funcs, "\n"))
}

// pad fills up to the offset to, counted from this type's start.
func (l *layouter) pad(to int) {
	if n := to - l.at; n > 0 {
		l.body = append(l.body, fmt.Sprintf("_ [%d]byte", n))
		l.at = to
	}
}

func (l *layouter) field(f field) error {
	name := fieldName(f.Name)
	l.pad(f.Offset - l.base)
	switch {
	case f.Type == "union":
		l.union(name, f, l.alignOf(f))
		return nil
	case f.Type == "struct":
		l.add(name, l.anonymous(f), f)
		return nil
	}
	g, err := l.goType(f.Type, l.tag, f.Name)
	l.add(name, g, f)
	return err
}

func (l *layouter) add(name, typ string, f field) {
	l.body = append(l.body, name+" "+typ)
	if name != "_" {
		l.check = append(l.check, fmt.Sprintf("_ = [1]struct{}{}[unsafe.Offsetof(%s{}.%s)-%d]", l.typ, name, f.Offset-l.base))
	}
	l.at = f.Offset - l.base + f.Size
}

// anonymous writes the anonymous struct f after this type, and returns its name.
func (l *layouter) anonymous(f field) string {
	typ := l.typ + "_" + f.Name
	l.later = append(l.later, func() error {
		inner := layouter{abi: l.abi, w: l.w, typ: typ, tag: l.tag + "." + f.Name, base: f.Offset}
		return inner.write("struct", f.Size, l.alignOf(f), f.Fields)
	})
	return typ
}

// union adds storage for the union f and an accessor for each member.
func (l *layouter) union(name string, f field, align int) {
	storage, unit := "union_"+strings.ToLower(name), "uint64"
	if align < 8 {
		unit = map[int]string{1: "uint8", 2: "uint16", 4: "uint32"}[align]
	}
	if align > 8 {
		align = 8
	}
	for _, m := range f.Fields {
		typ := ""
		if m.Type == "struct" {
			typ = l.anonymous(m)
		} else {
			typ, _ = l.goType(m.Type, l.tag, m.Name)
		}
		l.funcs = append(l.funcs, fmt.Sprintf("// %s gives the union's member %s. Pointers stored there are hidden from\n// the garbage collector: the caller keeps what they point to alive.\nfunc (s *%s) %s() *%s { return (*%s)(unsafe.Pointer(&s.%s)) }\n",
			name+fieldName(m.Name), m.Name, l.typ, name+fieldName(m.Name), typ, typ, storage))
	}
	l.add(storage, fmt.Sprintf("[%d]%s", f.Size/align, unit), f)
}

// alignOf returns the alignment of an anonymous member.
func (l *layouter) alignOf(f field) int {
	switch f.Type {
	case "struct", "union":
		n := 1
		for _, m := range f.Fields {
			n = max(n, l.alignOf(m))
		}
		return n
	}
	elem, size := f.Type, f.Size
	if m := arrayType.FindStringSubmatch(f.Type); m != nil {
		var n int
		fmt.Sscan(m[2], &n)
		elem, size = strings.TrimSpace(m[1]), f.Size/n
	}
	if s, ok := l.isStruct(elem); ok {
		return s.Align
	}
	return size
}

// fieldName exports a C field name. Padding is blank; a nameless union has no
// name, so that its members' accessors go without a prefix.
func fieldName(c string) string {
	switch {
	case c == "":
		return ""
	case strings.HasPrefix(c, "_internal"):
		return "_"
	}
	c = strings.TrimPrefix(c, "_")
	return strings.ToUpper(c[:1]) + c[1:]
}
