package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A source is what the Go files of package cu say: which driver functions they
// call, and which exported names mention which function.
type source struct {
	called map[string]bool     // by symbol
	spoken map[string][]string // exported names, by function without its ABI's number
}

// readSource parses the files of a package, without tests.
func readSource(dir string) (*source, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	s := &source{called: map[string]bool{}, spoken: map[string][]string{}}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		s.read(file)
	}
	for _, names := range s.spoken {
		slices.Sort(names)
	}
	return s, nil
}

func (s *source) read(file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && strings.HasPrefix(sel.Sel.Name, "Cu") {
			s.called["cu"+strings.TrimPrefix(sel.Sel.Name, "Cu")] = true
		}
		return true
	})
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Name.IsExported() && f.Doc != nil {
			s.hear(goName(f), f.Doc.Text())
		}
	}
}

var driverFunction = regexp.MustCompile(`\bcu[A-Z][A-Za-z0-9]*`)

// hear records the driver functions that a comment mentions.
func (s *source) hear(name, comment string) {
	for _, function := range driverFunction.FindAllString(comment, -1) {
		if !slices.Contains(s.spoken[function], name) {
			s.spoken[function] = append(s.spoken[function], name)
		}
	}
}

// goName returns a function's name with its receiver's.
func goName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	t := f.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if ident, ok := t.(*ast.Ident); ok {
		return ident.Name + "." + f.Name.Name
	}
	return f.Name.Name
}

var abiNumber = regexp.MustCompile(`_v\d+$`)

// plainName returns a symbol without its ABI's number, as comments name it.
func plainName(symbol string) string { return abiNumber.ReplaceAllString(symbol, "") }
