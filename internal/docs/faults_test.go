package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFaultsAreOnBothPages: what happens and its evidence stand under the same number, in
// sections of the same names.
func TestFaultsAreOnBothPages(t *testing.T) {
	lines := regexp.MustCompile(`(?m)^(?:\| *([0-9]+) *\||## (.*)$)`)
	numbers := func(page string) (all []string) {
		text, err := os.ReadFile(filepath.Join("../..", page))
		require.NoError(t, err)
		for _, m := range lines.FindAllStringSubmatch(string(text), -1) {
			all = append(all, m[1]+m[2])
		}
		return all
	}
	short, full := numbers("docs/faults.md"), numbers(evidence)
	require.NotEmpty(t, short)
	require.Equal(t, append(short, "Checks of the checks"), full)
}

// planted writes tests into packages a and b of a new root.
func planted(t *testing.T) (root string) {
	root = t.TempDir()
	for pkg, text := range map[string]string{
		"a": `
var lies = []string{"fault 3: a pipe", "fault 4 and 5: x"}

func TestFault1_Dies(t *testing.T) {}

// TestFault2and3_Both is told.
//
//fault:skip only root can
//fault:only S
func TestFault2and3_Both(t *testing.T) {}

//fault:skip fault 3: no pipes
func TestLies(t *testing.T) { each(t) }

func each(t *testing.T) { for _, name := range lies { t.Run(name, nil) } }

func TestWithoutSubtests(t *testing.T) { _ = lies }

func TestOthers(t *testing.T) { lies := 1; t.Run("x", lies) }

//fault:none
func TestNone(t *testing.T) { each(t) }
`,
		"b": "\n//fault:rows 1 2\nfunc FuzzOther(f *testing.F) {}\n",
	} {
		require.NoError(t, os.Mkdir(filepath.Join(root, pkg), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(root, pkg, "a_test.go"), []byte("package p\n"+text), 0o600))
	}
	return root
}

// TestColumnOfTests: it is made of names and comments.
func TestColumnOfTests(t *testing.T) {
	root := planted(t)
	page := func(cells ...string) []byte {
		all := []string{"# F", ""}
		for i, cell := range cells {
			all = append(all, "| "+string(rune('1'+i))+" | f | S | h | "+cell+" | – |")
		}
		return []byte(strings.Join(append(all, "end"), "\n"))
	}
	made, err := withTests(page("stale", "", "", "`c` TestOld; not tested yet: needs kernels", ""), root)
	require.NoError(t, err)
	want := page("`a` TestFault1_Dies; `b` FuzzOther", "`a` TestFault2and3_Both (S) (skip: only root can); `b` FuzzOther",
		"`a` TestFault2and3_Both (S) (skip: only root can), TestLies/fault 3 (skip: no pipes)",
		"`a` TestLies/fault 4 and 5; not tested yet: needs kernels", "`a` TestLies/fault 4 and 5")
	require.Equal(t, string(want), string(made))
	again, err := withTests(made, root)
	require.NoError(t, err)
	require.Equal(t, string(made), string(again))
	_, err = withTests(page("", "", "", ""), root)
	require.ErrorContains(t, err, "has no row for fault 5")
	_, err = withTests(page("", "", "", "", "", ""), root)
	require.ErrorContains(t, err, "no test says that it is of fault 6")
	_, err = withTests([]byte("| 1 | f |"), root)
	require.ErrorContains(t, err, "2 columns")
	for _, bad := range []string{"//fault:rows x", "//fault:row 1", "//fault:only T", "//fault:skip"} {
		require.NoError(t, os.WriteFile(filepath.Join(root, "b", "b_test.go"), []byte("package p\n"+bad+"\nfunc TestX() {}\n"), 0o600))
		_, err = withTests(nil, root)
		require.ErrorContains(t, err, "b, TestX: "+bad)
	}
}
