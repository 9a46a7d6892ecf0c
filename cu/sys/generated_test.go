package sys

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An argument that is a pointer moves what it points to off the stack, and is
// kept alive until the call is over: in each of the methods, not just in those
// that other tests call.
func TestEveryPointerIsForcedToTheHeapAndKeptAlive(t *testing.T) {
	methods := 0
	for _, file := range []string{"zfuncs.go", "zolder.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, d := range f.Decls {
			m, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			methods++
			passed, kept := mentions(m.Body)
			for _, p := range m.Type.Params.List {
				for _, name := range p.Names {
					require.Equal(t, isPointer(p.Type), passed[name.Name] == 1, "%s: %s", m.Name, name)
					require.Equal(t, isPointer(p.Type), kept[name.Name] == 1, "%s: %s", m.Name, name)
				}
			}
		}
	}
	require.EqualValues(t, numFunctions, methods)
}

// mentions counts the variables that are passed as addresses in a method, and
// those that are alive at its end. What is placed is both.
func mentions(body *ast.BlockStmt) (passed, kept map[string]int) {
	passed, kept = map[string]int{}, map[string]int{}
	called, after := false, false // the crossing, and in a statement before
	for _, s := range body.List {
		ast.Inspect(s, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			switch f := spelled(call.Fun); {
			case f == "address" && !called:
				passed[spelled(call.Args[0])]++
			case f == "p.placePointer" && !called:
				passed[spelled(call.Args[0])]++
				kept[spelled(call.Args[0])]++
			case f == "runtime.KeepAlive" && after:
				kept[spelled(call.Args[0])]++
			case strings.HasPrefix(f, "c.call"):
				called = true
			}
			return true
		})
		after = called
	}
	return passed, kept
}

// spelled is a name, alone or of a package or variable, in unsafe.Pointer or
// not.
func spelled(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return spelled(e.X) + "." + e.Sel.Name
	case *ast.CallExpr:
		if spelled(e.Fun) == "unsafe.Pointer" {
			return spelled(e.Args[0])
		}
	}
	return ""
}

func isPointer(typ ast.Expr) bool {
	_, star := typ.(*ast.StarExpr)
	return star || spelled(typ) == "unsafe.Pointer"
}
