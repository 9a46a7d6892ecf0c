package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// faults is how many rows docs/faults-evidence.md has.
const faults = 96

// A source is what the tests of a package hold.
type source struct {
	functions map[string]bool
	texts     []string        // string literals
	uses      map[string]bool // of other packages, as package.Name
}

// sources are those of all packages with tests, by directory.
func sources(t *testing.T) map[string]*source {
	t.Helper()
	const root = "../.."
	all := map[string]*source{}
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
		if all[dir] == nil {
			all[dir] = &source{functions: map[string]bool{}, uses: map[string]bool{}}
		}
		return all[dir].read(path)
	})
	require.NoError(t, err)
	return all
}

func (s *source) read(path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			s.functions[n.Name.Name] = true
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				s.texts = append(s.texts, text)
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				s.uses[x.Name+"."+n.Sel.Name] = true
			}
		}
		return true
	})
	return nil
}

// has reports whether the test exists, as far as its source tells: a subtest's
// name begins a text.
func (s *source) has(t test) bool {
	function, sub, subtest := strings.Cut(t.name, "/")
	return s != nil && s.functions[function] &&
		(!subtest || slices.ContainsFunc(s.texts, func(text string) bool { return t.matches(function+"/"+rewritten(text)) || text == sub }))
}

func table(t *testing.T) []row {
	t.Helper()
	rows, err := readTable("../../docs/faults-evidence.md")
	require.NoError(t, err)
	return rows
}

func TestTableHasEveryRowOnce(t *testing.T) {
	rows := table(t)
	for i, r := range rows {
		require.Equal(t, i+1, r.number)
	}
	require.Equal(t, faults, len(rows))
}

// What the table names is there. `make faults` would find that out, too, and only
// later.
func TestNamedTestsExist(t *testing.T) {
	all := sources(t)
	for _, r := range table(t) {
		for _, named := range r.tests {
			require.True(t, all[named.pkg].has(named), "row %d: %s", r.number, named)
		}
	}
	for _, absent := range []string{"TestFault1_Renamed", "TestLiesInTheMiddle/fault 7", "TestLiesInTheMiddle/fault 8"} {
		require.False(t, all["tests"].has(test{pkg: "tests", name: absent}), absent)
	}
}

var (
	faultFunction = regexp.MustCompile(`^TestFault([0-9]+(?:(?:and|to)[0-9]+)*)_`)
	faultSubtest  = regexp.MustCompile(`^fault ([0-9]+(?:(?:, | and | to )[0-9]+)*): `)
	number        = regexp.MustCompile(`[0-9]+|to`)
)

// rowsIn are the rows that a name says it is about: "50to52", "19 and 20".
func rowsIn(text string) (rows []int) {
	to := false
	for _, word := range number.FindAllString(text, -1) {
		n, err := strconv.Atoi(word)
		if err != nil {
			to = true
			continue
		}
		for to && rows[len(rows)-1] < n-1 {
			rows = append(rows, rows[len(rows)-1]+1)
		}
		rows, to = append(rows, n), false
	}
	return rows
}

func TestRowsInNames(t *testing.T) {
	require.Equal(t, []int{50, 51, 52}, rowsIn("50to52"))
	require.Equal(t, []int{5, 6}, rowsIn("5and6"))
	require.Equal(t, []int{19, 20}, rowsIn("19 and 20"))
	require.Equal(t, []int{7}, rowsIn("7"))
}

// A test that says it is about a row is in the row.
func TestTestsOfFaultsAreNamed(t *testing.T) {
	rows := table(t)
	for dir, s := range sources(t) {
		for name := range s.functions {
			if m := faultFunction.FindStringSubmatch(name); m != nil {
				requireNamed(t, rows, rowsIn(m[1]), dir, name, func(named test) bool { return named.function() == name })
			}
		}
		for _, text := range s.texts {
			if m := faultSubtest.FindStringSubmatch(text); m != nil {
				requireNamed(t, rows, rowsIn(m[1]), dir, text, func(named test) bool {
					_, sub, ok := strings.Cut(named.name, "/")
					return ok && strings.HasPrefix(text, sub)
				})
			}
		}
	}
}

// requireNamed wants a test in dir that fits in each of the rows.
func requireNamed(t *testing.T, rows []row, numbers []int, dir, name string, fits func(test) bool) {
	t.Helper()
	for _, n := range numbers {
		require.LessOrEqual(t, n, len(rows), "%s: %s", dir, name)
		require.True(t, slices.ContainsFunc(rows[n-1].tests, func(named test) bool { return named.pkg == dir && fits(named) }),
			"docs/faults-evidence.md does not name %q of %s in row %d", name, dir, n)
	}
}

// A package whose tests meet the driver, or descriptors, looks for leaks in the
// end: without that what its rows say of nothing left behind is not checked.
func TestNamedPackagesLookForLeaks(t *testing.T) {
	all := sources(t)
	for _, r := range table(t) {
		for _, named := range r.tests {
			if named.pkg == "internal/pattern" { // which has nothing to leave
				continue
			}
			s := all[named.pkg].uses
			require.True(t, s["cutest.Main"] || s["cutest.Run"] || s["leak.Check"] || s["leak.Report"], "no leak check in the tests of %s", named.pkg)
		}
	}
}

func TestRowsAreRead(t *testing.T) {
	r, err := readRow("| 52 | a fault | S G | it ends | `tests` TestA/fault 52 (skip: only root) (skip: no disk), TestB (G); `a/b-c` FuzzC; not tested yet: needs kernels | – |")
	require.NoError(t, err)
	require.Equal(t, row{number: 52, fault: "a fault", software: true, hardware: true, later: "needs kernels", tests: []test{
		{pkg: "tests", name: "TestA/fault 52", skips: []string{"only root", "no disk"}},
		{pkg: "tests", name: "TestB", only: "G"}, {pkg: "a/b-c", name: "FuzzC"},
	}}, r)
	for _, bad := range []string{
		"| 1 | x | S | y | `tests` TestA |", "| 1 | x | T | y | `tests` TestA | – |", "| 1 | x | S | y | TestA | – |",
		"| 1 | x | S | y | none | – |", "| 1 | x | S | y | `tests` (skip: why) | – |", "| 1 | x | S | y | a | b | `tests` TestA | – |",
	} {
		_, err := readRow(bad)
		require.Error(t, err, bad)
	}
	for name, want := range map[string]bool{"TestA/fault_5:_x": true, "TestA/fault_5_and_6:_x": true, "TestA/fault_5": true,
		"TestA/fault_52:_x": false, "TestA": false, "TestAB/fault_5:_x": false, "TestA/x_fault_5": false} {
		require.Equal(t, want, test{name: "TestA/fault 5"}.matches(name), name)
	}
}
