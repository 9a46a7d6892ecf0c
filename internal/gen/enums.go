package main

import (
	"regexp"
	"slices"
)

// writeEnums declares every enum with its constants and a String method that
// returns the C name.
func writeEnums(a *abi, w *writer) error {
	w.p("package sys\n")
	for _, tag := range a.Enums.keys {
		writeEnum(w, a.canonical("enum "+tag), a.Enums.m[tag])
	}
	return nil
}

func writeEnum(w *writer, name string, constants []constant) {
	underlying := "uint32"
	if slices.ContainsFunc(constants, func(c constant) bool { return c.Value < 0 }) {
		underlying = "int32"
	}
	w.p("// %s is the C enum of that name.\ntype %s %s\n", name, name, underlying)
	w.p("// The constants of %s.\nconst (", name)
	for _, c := range constants {
		w.p("%s %s = %d", c.Name, name, c.Value)
	}
	w.p(")\n")
	w.p("// String gives v's name in C, or its number.")
	w.p("func (v %s) String() string {\nswitch v {", name)
	seen := map[int64]bool{}
	for _, c := range constants {
		if !seen[c.Value] {
			w.p("case %s:\nreturn %q", c.Name, c.Name)
		}
		seen[c.Value] = true
	}
	w.p("}\nreturn enumNumber(%q, int64(v))\n}\n", name)
}

// writeConstants declares the macros that hold a number; casts to a handle
// type become typed constants.
func writeConstants(a *abi, w *writer) error {
	w.p("package sys\n")
	w.p("// The header's macros that hold a number.\nconst (")
	for _, name := range a.Constants.keys {
		w.p("%s = %s", name, goValue(a.Constants.m[name]))
	}
	w.p(")\n")
	return nil
}

// cast is a macro's `( ( TYPE ) VALUE )`.
var cast = regexp.MustCompile(`^\( \( (\w+) \) (.*) \)$`)

func goValue(c string) string {
	if m := cast.FindStringSubmatch(c); m != nil {
		return m[1] + "(" + m[2] + ")"
	}
	return c
}
