package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// forTwo are functions that tests call if they need two devices, or use all there
// are.
var forTwo = []string{"TwoDevices", "Devices", "hasDevices", "CuDeviceGetCount", "ring"}

// wholeForTwo runs as a whole: it counts its checks, and its children use all
// devices.
const wholeForTwo = "tests/conformance"

// printTwo lists the tests of directories that check more with two devices, one
// package and test a line: those that call one of forTwo, directly or through
// other functions of their package's tests.
func printTwo(root string, dirs []string, out io.Writer) error {
	for _, dir := range dirs {
		if dir == wholeForTwo {
			fmt.Fprintln(out, dir)
			continue
		}
		calls, err := callsIn(filepath.Join(root, dir))
		if err != nil {
			return err
		}
		reaching := slices.Clone(forTwo)
		for more := true; more; {
			more = false
			for name, called := range calls {
				if !slices.Contains(reaching, name) && slices.ContainsFunc(called, func(f string) bool { return slices.Contains(reaching, f) }) {
					reaching, more = append(reaching, name), true
				}
			}
		}
		slices.Sort(reaching)
		for _, name := range reaching {
			if strings.HasPrefix(name, "Test") {
				fmt.Fprintln(out, dir, name)
			}
		}
	}
	return nil
}

// callsIn lists what each function of a directory's tests calls.
func callsIn(dir string) (map[string][]string, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	calls := map[string][]string{}
	for _, name := range names {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				ast.Inspect(f, func(n ast.Node) bool {
					if c, ok := n.(*ast.CallExpr); ok {
						calls[f.Name.Name] = append(calls[f.Name.Name], called(c))
					}
					return true
				})
			}
		}
	}
	return calls, nil
}

// called returns the name of the function or method called.
func called(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}
