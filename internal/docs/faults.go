package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// evidence is the page whose column of tests comes from the tests' sources.
const evidence = "docs/faults-evidence.md"

// Columns of its tables.
const (
	faultNumber  = 0
	faultTests   = 4
	faultColumns = 6
)

var (
	faultRow      = regexp.MustCompile(`^\| *([0-9]+) *\|`)
	faultFunction = regexp.MustCompile(`^TestFault([0-9]+(?:(?:and|to)[0-9]+)*)_`)
	faultSubtest  = regexp.MustCompile(`^(fault ([0-9]+(?:(?:, | and | to )[0-9]+)*)): `)
	faultWords    = regexp.MustCompile(`[0-9]+|to`)
	notTested     = regexp.MustCompile(`not tested yet: .*$`)
)

// A proof is a test, or some of its subtests, as a row names it.
type proof struct {
	pkg  string
	name string // the function; behind a slash, what the names of subtests begin with
	only string // S or G: the driver that it is for; "" is both
	skip []string
}

func (p proof) String() string {
	text := p.name
	if p.only != "" {
		text += " (" + p.only + ")"
	}
	for _, why := range p.skip {
		text += " (skip: " + why + ")"
	}
	return text
}

// withTests returns the page with the column of tests made anew.
func withTests(page []byte, root string) ([]byte, error) {
	proofs, err := proofsIn(root)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(page), "\n")
	for i, line := range lines {
		m := faultRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), "|")
		if len(cells) != faultColumns {
			return nil, fmt.Errorf("%s:%d: %d columns, want %d", evidence, i+1, len(cells), faultColumns)
		}
		number, _ := strconv.Atoi(m[1])
		later := notTested.FindString(strings.TrimSpace(cells[faultTests]))
		cells[faultTests] = " " + testsCell(proofs[number], later) + " "
		if strings.TrimSpace(cells[faultTests]) == "" {
			return nil, fmt.Errorf("%s:%d: no test says that it is of fault %d", evidence, i+1, number)
		}
		delete(proofs, number)
		lines[i] = "| " + strings.Join(cells, "|") + " |"
	}
	for number, of := range proofs {
		return nil, fmt.Errorf("%s has no row for fault %d, of which is %s of %s", evidence, number, of[0].name, of[0].pkg)
	}
	return []byte(strings.Join(lines, "\n")), nil
}

// testsCell lists tests, by package.
func testsCell(proofs []proof, later string) string {
	var groups []string
	for i, p := range proofs {
		if i > 0 && p.pkg == proofs[i-1].pkg {
			groups[len(groups)-1] += ", " + p.String()
		} else {
			groups = append(groups, "`"+p.pkg+"` "+p.String())
		}
	}
	if later != "" {
		groups = append(groups, later)
	}
	return strings.Join(groups, "; ")
}

// proofsIn finds the tests of each fault in all packages.
func proofsIn(root string) (map[int][]proof, error) {
	dirs := map[string]*testSource{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{"testdata", "bench", "build", ".git"}, d.Name()):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		if dirs[dir] == nil {
			dirs[dir] = &testSource{pkg: filepath.ToSlash(dir), uses: map[string][]string{}, texts: map[string][]string{}, runs: map[string]bool{}, docs: map[string]*ast.CommentGroup{}}
		}
		return dirs[dir].read(path)
	})
	if err != nil {
		return nil, err
	}
	all := map[int][]proof{}
	for _, s := range dirs {
		for name := range s.docs {
			if err := s.proofs(name, all); err != nil {
				return nil, fmt.Errorf("%s, %s: %w", s.pkg, name, err)
			}
		}
	}
	for _, of := range all {
		slices.SortFunc(of, func(a, b proof) int { return cmp.Or(cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.name, b.name)) })
	}
	return all, nil
}

// A testSource is what the tests of a package declare: functions, and tables beside them.
type testSource struct {
	pkg   string
	uses  map[string][]string // the names in a declaration
	texts map[string][]string // the strings in it that name subtests of faults
	runs  map[string]bool     // the functions that run subtests
	docs  map[string]*ast.CommentGroup
}

func (s *testSource) read(path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				continue
			}
			if strings.HasPrefix(d.Name.Name, "Test") || strings.HasPrefix(d.Name.Name, "Fuzz") {
				s.docs[d.Name.Name] = d.Doc
			}
			s.note(d.Name.Name, d)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok {
					s.note(v.Names[0].Name, v)
				}
			}
		}
	}
	return nil
}

// note takes what a declaration says. A name that it declares itself is nobody else's.
func (s *testSource) note(name string, d ast.Node) {
	own := localNames(d)
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			if !own[n.Name] {
				s.uses[name] = append(s.uses[name], n.Name)
			}
		case *ast.CallExpr:
			if selected(n.Fun) == "Run" {
				s.runs[name] = true
			}
		case *ast.BasicLit:
			if m := faultSubtest.FindStringSubmatch(text(n)); m != nil {
				s.texts[name] = append(s.texts[name], m[1])
			}
		}
		return true
	})
}

// localNames are those of the variables and parameters in a declaration, and of the fields,
// methods and members that it selects.
func localNames(d ast.Node) map[string]bool {
	own := map[string]bool{}
	add := func(e ast.Node) {
		if id, ok := e.(*ast.Ident); ok {
			own[id.Name] = true
		}
	}
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for _, left := range n.Lhs {
				if n.Tok == token.DEFINE {
					add(left)
				}
			}
		case *ast.RangeStmt:
			add(n.Key)
			add(n.Value)
		case *ast.Field:
			for _, id := range n.Names {
				add(id)
			}
		case *ast.SelectorExpr:
			add(n.Sel)
		}
		return true
	})
	return own
}

// subtests are the names, up to the colon, of subtests that a test makes, with what it uses.
func (s *testSource) subtests(name string) (all []string) {
	seen := map[string]bool{}
	var visit func(string)
	visit = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		all = append(all, s.texts[name]...)
		for _, used := range s.uses[name] {
			visit(used)
		}
	}
	visit(name)
	if !slices.ContainsFunc(slices.Collect(maps.Keys(seen)), func(used string) bool { return s.runs[used] }) {
		return nil
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// proofs adds a test to the faults that it is of: those of its subtests' names, those of its
// own, and those that its comment adds.
func (s *testSource) proofs(name string, all map[int][]proof) error {
	says, err := readSays(s.docs[name])
	if err != nil {
		return err
	}
	bySubtest := map[int]bool{}
	for _, sub := range s.subtests(name) {
		if says.none {
			break
		}
		for _, n := range faultsIn(strings.TrimPrefix(sub, "fault ")) {
			bySubtest[n] = true
			all[n] = append(all[n], proof{s.pkg, name + "/" + sub, says.only, append(slices.Clone(says.skip[""]), says.skip[sub]...)})
		}
	}
	rows := says.rows
	if m := faultFunction.FindStringSubmatch(name); m != nil {
		rows = append(rows, faultsIn(m[1])...)
	}
	slices.Sort(rows)
	for _, n := range slices.Compact(rows) {
		if !bySubtest[n] {
			all[n] = append(all[n], proof{s.pkg, name, says.only, says.skip[""]})
		}
	}
	return nil
}

// A says is what the comment of a test says of it, in lines that go doc leaves out:
//
//	//fault:rows 2 3             it is of these faults, too
//	//fault:only S               in its rows, it is for that driver alone: S or G
//	//fault:skip only root can   it may be skipped for a reason with these words
//	//fault:skip fault 52: WORDS its subtests of that name may
//	//fault:none                 what it uses names faults, and its subtests do not
type says struct {
	rows []int
	only string
	skip map[string][]string // by subtest
	none bool
}

func readSays(doc *ast.CommentGroup) (s says, err error) {
	s.skip = map[string][]string{}
	if doc == nil {
		return s, nil
	}
	for _, c := range doc.List {
		line, ok := strings.CutPrefix(c.Text, "//fault:")
		if !ok {
			continue
		}
		verb, rest, _ := strings.Cut(line, " ")
		switch {
		case verb == "rows" && rest != "":
			for _, word := range strings.Fields(rest) {
				n, err := strconv.Atoi(word)
				if err != nil {
					return s, fmt.Errorf("%s: want numbers", c.Text)
				}
				s.rows = append(s.rows, n)
			}
		case verb == "only" && (rest == "S" || rest == "G"):
			s.only = rest
		case verb == "skip" && rest != "":
			sub := ""
			if m := faultSubtest.FindStringSubmatch(rest); m != nil {
				sub, rest = m[1], strings.TrimPrefix(rest, m[0])
			}
			s.skip[sub] = append(s.skip[sub], rest)
		case verb == "none" && rest == "":
			s.none = true
		default:
			return s, fmt.Errorf("%s: want rows, only, skip or none", c.Text)
		}
	}
	return s, nil
}

// faultsIn are the faults that a name says it is of: "50to52", "19 and 20".
func faultsIn(text string) (all []int) {
	to := false
	for _, word := range faultWords.FindAllString(text, -1) {
		n, err := strconv.Atoi(word)
		if err != nil {
			to = true
			continue
		}
		for to && all[len(all)-1] < n-1 {
			all = append(all, all[len(all)-1]+1)
		}
		all, to = append(all, n), false
	}
	return all
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
