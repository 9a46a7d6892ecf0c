package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// primitives are the C types that Go spells differently. size_t is uintptr, as
// everywhere on LP64.
var primitives = map[string]string{
	"void": "", "int": "int32", "unsigned int": "uint32", "char": "byte",
	"unsigned char": "uint8", "short": "int16", "unsigned short": "uint16",
	"long long": "int64", "unsigned long long": "uint64", "size_t": "uintptr",
	"float": "float32", "double": "float64", "uint32_t": "uint32", "uint64_t": "uint64",
	"cuuint32_t": "uint32", "cuuint64_t": "uint64",
}

// opaque names the `void *` parameters and fields that carry a value rather than
// an address of ours: file descriptors, user data, reserved words. They are
// uintptr; every other `void *` is memory and an unsafe.Pointer.
var opaque = []string{
	"osHandle", "userData", "cuMemPoolImportFromShareableHandle.handle", "cuUserObjectCreate.ptr",
	"reserved0", "reserved1", "cuTensorMapEncodeIm2col.globalAddress",
	"cuTensorMapEncodeIm2colWide.globalAddress", "cuTensorMapEncodeTiled.globalAddress",
	"cuTensorMapReplaceAddress.globalAddress", "cuMemRetainAllocationHandle.addr",
	"CUmemDecompressParams_st.src", "CUmemDecompressParams_st.dst", "base_ptr", "win32HandleMetaData", "win32SecurityAttributes",
}

// opaqueLists names the `void **` parameters and fields that are lists of values,
// including small numbers, which must not have pointer types. The caller keeps
// alive what addresses among them point to.
var opaqueLists = []string{"extra", "optionValues", "jitOptionsValues", "libraryOptionValues"}

var (
	arrayType  = regexp.MustCompile(`^(.*)\[(\d+)\]$`)
	versionEnd = regexp.MustCompile(`_v\d+$`)
)

// goType spells a C type in Go. owner and name say where it stands, for the
// rule on `void *`.
func (a *abi) goType(c, owner, name string) (string, error) {
	if m := arrayType.FindStringSubmatch(c); m != nil {
		elem, err := a.goType(strings.TrimSpace(m[1]), owner, name)
		return "[" + m[2] + "]" + elem, err
	}
	base := strings.TrimSpace(strings.ReplaceAll(strings.ReplaceAll(c, "const ", ""), "*", ""))
	stars := strings.Count(c, "*")
	if strings.Contains(c, "(*)") {
		return "uintptr", nil
	}
	if base == "void" {
		if stars == 2 && slices.Contains(opaqueLists, name) {
			return "*uintptr", nil
		}
		if stars == 1 && (slices.Contains(opaque, name) || slices.Contains(opaque, owner+"."+name)) {
			return "uintptr", nil
		}
		return strings.Repeat("*", stars-1) + "unsafe.Pointer", nil
	}
	g, err := a.baseType(base)
	return strings.Repeat("*", stars) + g, err
}

func (a *abi) baseType(base string) (string, error) {
	if g, ok := primitives[base]; ok {
		return g, nil
	}
	if _, ok := a.Typedefs.m[base]; ok {
		return base, nil
	}
	if tag, ok := strings.CutPrefix(base, "struct "); ok {
		return a.structName(tag), nil
	}
	return "", fmt.Errorf("type %q is not known", base)
}

// structName returns the Go name of the struct or union with that tag.
func (a *abi) structName(tag string) string {
	for _, kind := range []string{"struct ", "union "} {
		if name := a.canonical(kind + tag); name != "" {
			return name
		}
	}
	return strings.TrimSuffix(tag, "_st")
}

// canonical returns the name that declares target in Go: the typedef that names
// it directly, without its version suffix if a typedef without one means the
// same. The other typedefs become aliases of it.
func (a *abi) canonical(target string) string {
	for _, name := range a.Typedefs.keys {
		if a.Typedefs.m[name] != target {
			continue
		}
		plain := versionEnd.ReplaceAllString(name, "")
		if a.root(plain) == name {
			return plain
		}
		return name
	}
	return ""
}

// root returns the last name in a chain of typedefs.
func (a *abi) root(name string) string {
	for {
		next := a.Typedefs.m[name]
		if _, ok := a.Typedefs.m[next]; !ok || primitives[next] != "" {
			return name
		}
		name = next
	}
}

// isEnum reports whether the C type c is an enum.
func (a *abi) isEnum(c string) bool {
	return strings.HasPrefix(a.Typedefs.m[a.root(c)], "enum ")
}

// isStruct returns the layout of the C type c if it is a struct or union.
func (a *abi) isStruct(c string) (structure, bool) {
	target := a.Typedefs.m[a.root(c)]
	if t, ok := strings.CutPrefix(c, "struct "); ok {
		target = "struct " + t
	}
	for _, kind := range []string{"struct ", "union "} {
		if tag, ok := strings.CutPrefix(target, kind); ok {
			s, ok := a.Structs.m[tag]
			return s, ok
		}
	}
	return structure{}, false
}

// writeTypes declares handles and numbers, and every alias.
func writeTypes(a *abi, w *writer) error {
	w.p("package sys\n")
	for _, name := range a.Typedefs.keys {
		target := a.Typedefs.m[name]
		if _, ok := primitives[name]; ok {
			continue
		}
		declared := a.declaredName(name)
		switch {
		case declared != name:
			w.p("// %s is the C typedef of that name.\ntype %s = %s\n", name, name, declared)
		case strings.HasPrefix(a.Typedefs.m[a.root(name)], "enum "), a.isLayout(name):
			// In zenums.go and zstructs.go.
		case strings.Contains(target, "(*)"):
			w.p("// %s is the address of a C function, %s.\ntype %s uintptr\n", name, target, name)
		case strings.HasSuffix(target, "*"):
			w.p("// %s is an opaque handle, %s.\ntype %s uintptr\n", name, target, name)
		default:
			if err := writeNumber(a, w, name); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeNumber(a *abi, w *writer, name string) error {
	target := a.Typedefs.m[a.root(name)]
	g, err := a.baseType(target)
	if err != nil {
		return err
	}
	w.p("// %s is the C typedef of that name, %s.\ntype %s %s\n", name, target, name, g)
	return nil
}

func (a *abi) isLayout(name string) bool {
	_, ok := a.isStruct(name)
	return ok
}

// declaredName returns the name that declares name's type; other names are
// aliases of it.
func (a *abi) declaredName(name string) string {
	root := a.root(name)
	plain := versionEnd.ReplaceAllString(root, "")
	if _, ok := a.Typedefs.m[plain]; ok && a.root(plain) == root {
		return plain
	}
	return root
}
