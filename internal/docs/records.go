package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// records are the members of each JSON record that a package prints, by its event.
type records map[string][]string

func (r records) add(event string, members ...string) {
	r[event] = append(r[event], members...)
	slices.Sort(r[event])
	r[event] = slices.Compact(r[event])
}

// A source is a package whose records are looked for.
type source struct {
	files []*ast.File
	found records
}

// fields is the name of the type that a record is made of.
const fields = "Fields"

// recordsOf finds the records of a command, or of those of its files alone: what it gives to
// Say and to object, and what it keeps for the last line.
func recordsOf(dir string, only ...string) (records, error) {
	s, err := parsed(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range s.files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil || len(only) > 0 && !slices.Contains(only, f.Name.Name+".go") {
				continue
			}
			if err := s.inspect(fn); err != nil {
				return nil, fmt.Errorf("%s, %s: %w", dir, fn.Name.Name, err)
			}
		}
	}
	return s.found, nil
}

// parsed reads the package in dir without its tests. Each file has its own name for that of
// its package.
func parsed(dir string) (*source, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(names) == 0 {
		return nil, fmt.Errorf("%s: no Go files: %w", dir, cmp.Or(err, os.ErrNotExist))
	}
	s := &source{found: records{}}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		f.Name.Name = strings.TrimSuffix(filepath.Base(name), ".go")
		s.files = append(s.files, f)
	}
	return s, nil
}

// inspect finds the records that a function makes.
func (s *source) inspect(fn *ast.FuncDecl) (err error) {
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			err = cmp.Or(err, s.call(fn, n))
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				s.kept(fn, left, n.Rhs[min(i, len(n.Rhs)-1)])
			}
		}
		return true
	})
	return err
}

// call finds the record of a call of Say or object, and what maps.Copy adds to the result.
func (s *source) call(fn *ast.FuncDecl, call *ast.CallExpr) error {
	switch name := selected(call.Fun); {
	case name == "Say" && len(call.Args) >= 3:
		event, known := eventOf(fn, call.Args[0])
		if event == "" {
			return unlessForPeople(known)
		}
		members, ok := s.members(fn, call.Args[1])
		if !ok {
			return fmt.Errorf("what event %q holds cannot be told from the sources", event)
		}
		s.found.add(event, members...)
	case name == "SayWay" && len(call.Args) == 3:
		s.found.add("result", text(call.Args[0]))
		s.found.add(text(call.Args[1]), "on", "why")
	case name == "object" && len(call.Args) == 1:
		lit, ok := call.Args[0].(*ast.CompositeLit)
		if !ok {
			return nil // a struct, or the result
		}
		event := noEvent
		for _, e := range lit.Elts {
			if kv := e.(*ast.KeyValueExpr); text(kv.Key) == "event" {
				event = text(kv.Value)
			}
		}
		s.found.add(event, slices.DeleteFunc(keys(lit), func(k string) bool { return k == "event" })...)
	case name == "Copy" && len(call.Args) == 2 && selected(call.Args[0]) == "Result":
		members, _ := s.members(fn, call.Args[1])
		s.found.add("result", members...)
	}
	return nil
}

// dynamic are the events of functions whose callers name them; a call of SayWay is looked at.
var dynamic = map[string]string{"SayWay": "", "Steps": "create, import, open, reserve, map, access, export"}

// eventOf is the event that fn names so: nothing for a line for people, which is known too.
func eventOf(fn *ast.FuncDecl, name ast.Expr) (event string, known bool) {
	if _, literal := name.(*ast.BasicLit); literal {
		return text(name), true
	}
	event, known = dynamic[fn.Name.Name]
	return event, known
}

func unlessForPeople(known bool) error {
	if !known {
		return errors.New("an event whose name cannot be told from the sources")
	}
	return nil
}

// kept finds what an assignment adds to the last line.
func (s *source) kept(fn *ast.FuncDecl, left, right ast.Expr) {
	if index, ok := left.(*ast.IndexExpr); ok && strings.EqualFold(selected(index.X), "result") {
		if name := text(index.Index); name != "" {
			if name != "event" {
				s.found.add("result", name)
			}
			return
		}
		ast.Inspect(fn, func(n ast.Node) bool { // of a loop over the members of another record
			if loop, ok := n.(*ast.RangeStmt); ok && loop.Pos() < left.Pos() && left.Pos() < loop.End() {
				members, _ := s.members(fn, loop.X)
				s.found.add("result", members...)
			}
			return true
		})
	}
	if lit, ok := right.(*ast.CompositeLit); ok && selected(left) == "result" {
		s.found.add("result", keys(lit)...)
	}
}

// members are those of a record that is an expression of fn.
func (s *source) members(fn *ast.FuncDecl, e ast.Expr) ([]string, bool) {
	switch e := e.(type) {
	case *ast.CompositeLit:
		return keys(e), true
	case *ast.Ident:
		if e.Name == "nil" {
			return nil, true
		}
		return s.variable(fn, e.Name)
	case *ast.CallExpr:
		return s.returned(selected(e.Fun))
	}
	return nil, false
}

// returned are the members of the record that a function returns in a variable.
func (s *source) returned(function string) (all []string, known bool) {
	for _, f := range s.files {
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Name.Name != function {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) == 1 {
					some, ok := s.members(fn, r.Results[0])
					all, known = append(all, some...), known || ok
				}
				return true
			})
		}
	}
	return all, known
}

// variable are the members of a record in a variable, or a parameter, of fn.
func (s *source) variable(fn *ast.FuncDecl, name string) (all []string, known bool) {
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		assign, ok := n.(*ast.AssignStmt)
		if !ok {
			return true
		}
		for i, left := range assign.Lhs {
			if index, ok := left.(*ast.IndexExpr); ok && selected(index.X) == name {
				all = append(all, text(index.Index))
			}
			if lit, ok := assign.Rhs[min(i, len(assign.Rhs)-1)].(*ast.CompositeLit); ok && selected(left) == name {
				all, known = append(all, keys(lit)...), true
			}
		}
		return true
	})
	if known {
		return all, true
	}
	at := 0
	for _, field := range fn.Type.Params.List {
		for _, param := range field.Names {
			if param.Name == name {
				given, ok := s.arguments(fn.Name.Name, at)
				return append(all, given...), ok
			}
			at++
		}
	}
	return nil, false
}

// arguments are the members of the records that callers of a function give as that argument.
func (s *source) arguments(function string, at int) (all []string, known bool) {
	for _, f := range s.files {
		for _, d := range f.Decls {
			caller, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(caller, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && selected(call.Fun) == function && at < len(call.Args) {
					some, ok := s.members(caller, call.Args[at])
					all, known = append(all, some...), known || ok
				}
				return true
			})
		}
	}
	return all, known
}

// keys are the members of a literal of a record.
func keys(lit *ast.CompositeLit) (names []string) {
	if selected(lit.Type) != fields {
		return nil
	}
	for _, e := range lit.Elts {
		names = append(names, text(e.(*ast.KeyValueExpr).Key))
	}
	return names
}

// selected is the name that an expression ends with: Say of a.app.Say, T of *T.
func selected(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.StarExpr:
		return selected(e.X)
	}
	return ""
}

// text is a literal string, or nothing.
func text(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	s, _ := strconv.Unquote(lit.Value)
	return s
}

// membersOf are the members in JSON of a struct.
func membersOf(dir, name string) (members []string, err error) {
	s, err := parsed(dir)
	if err != nil {
		return nil, err
	}
	if members = s.tags(name); members == nil {
		return nil, fmt.Errorf("%s has no struct %s", dir, name)
	}
	return members, nil
}

// tags are the names that a struct's fields have in JSON. Behind the name of a list of
// structs stand, in brackets, those of its elements.
func (s *source) tags(name string) (names []string) {
	for _, field := range s.structure(name) {
		if field.Tag == nil {
			if field.Names == nil { // embedded
				names = append(names, s.tags(selected(field.Type))...)
			}
			continue
		}
		tag, _ := strconv.Unquote(field.Tag.Value)
		name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		if name == "-" {
			continue
		}
		if list, ok := field.Type.(*ast.ArrayType); ok {
			if inner := s.tags(selected(list.Elt)); inner != nil {
				name += " [" + strings.Join(inner, ", ") + "]"
			}
		}
		names = append(names, name)
	}
	return names
}

// structure are the fields of the struct of that name.
func (s *source) structure(name string) (found []*ast.Field) {
	for _, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != name {
				return true
			}
			if body, ok := spec.Type.(*ast.StructType); ok {
				found = body.Fields.List
			}
			return true
		})
	}
	return found
}
