package doctor

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/hints"
)

var update = flag.Bool("update", false, "write the tables of docs/doctor-evidence.md: run all tests of this package at once")

// evidence is the page that counts the causes with their tests, and names the reports.
const evidence = "../../docs/doctor-evidence.md"

// A proof is a test that broke something and saw doctor name one cause and no other.
type proof struct{ cause, how, test string }

// seen are the proofs of this run. Tests that call shows do not run in parallel.
var seen = map[proof]bool{}

// shows requires that rows name this cause and no other, and that docs/doctor-evidence.md says so.
// how is what was broken.
func shows(t *testing.T, rows []Row, how, cause string) {
	t.Helper()
	named(t, rows, cause)
	seen[proof{cause, how, t.Name()}] = true
	if cutest.Kind() == cu.Soft && !*update { // a bundle for a GPU has no documents
		require.Contains(t, pageOf(t), line(proof{cause, how, t.Name()}), "go test ./internal/doctor -update writes it")
	}
}

// line is the row of a proof.
func line(p proof) string {
	cell := strings.NewReplacer("|", `\|`, "_", `\_`).Replace
	return fmt.Sprintf("| [%s](doctor.md#%s) | %s | %s |\n", p.cause, p.cause, cell(p.how), cell(p.test))
}

func pageOf(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(evidence)
	require.NoError(t, err)
	return string(b)
}

// causesTable counts the proofs.
func causesTable(proofs []proof) string {
	slices.SortFunc(proofs, func(a, b proof) int {
		at := func(p proof) int {
			return slices.IndexFunc(hints.Causes, func(c hints.Cause) bool { return c.ID == p.cause })
		}
		if d := at(a) - at(b); d != 0 {
			return d
		}
		return strings.Compare(a.test+a.how, b.test+b.how)
	})
	var b strings.Builder
	named := map[string]bool{}
	for _, p := range proofs {
		named[p.cause] = true
		b.WriteString(line(p))
	}
	return fmt.Sprintf("%d causes, broken in %d ways:\n\n| cause | what is broken | test |\n|---|---|---|\n%s", len(named), len(proofs), b.String())
}

// reportsTable has the reports, and what doctor names.
func reportsTable() string {
	var b strings.Builder
	b.WriteString("| report | its line | the cause that its thread found | named first |\n|---|---|---|---|\n")
	for _, r := range reports {
		project, number, _ := strings.Cut(r.source, "#")
		first := "another"
		if r.cause != "" {
			first = fmt.Sprintf("[%s](doctor.md#%s)", r.cause, r.cause)
		}
		fmt.Fprintf(&b, "| [%s](https://github.com/%s/issues/%s) | `%s` | %s | %s |\n", r.source, project, number, strings.Join(strings.Fields(r.line), " "), r.found, first)
	}
	return b.String()
}

// between is the part of a page between two comments.
func between(page, name string) (before, part, after string, ok bool) {
	begin, end := "<!-- "+name+": go test ./internal/doctor -update -->\n\n", "\n<!-- end -->\n"
	before, rest, ok := strings.Cut(page, begin)
	part, after, ends := strings.Cut(rest, end)
	return before + begin, part, end + after, ok && ends
}

// noProof are the causes that no test of this package shows alone, with the reason.
var noProof = map[string]string{
	"libcuda":       "its rows name causes of their own",
	"context":       "its failures have causes of their own",
	"memory-fd":     "its failures have causes of their own",
	"legacy-memory": "its failures have causes of their own",
	"legacy-event":  "its failures have causes of their own",
	"net-common":    "it is UNKNOWN at worst",
	"memory-with":   "its failures have causes of their own",
	"torch-own":     "an error of PyTorch, seen on an H200",
	"checkpoint":    "a process is lost by it, as an H200 showed",
	"shm-gone":      "an error of the system",
}

// Each cause has a test, unless it is said to be not tried, and each test of the page is there. With
// -update this writes the page: it runs behind all tests that add to seen, as its file's name is the
// last one.
func TestWritten(t *testing.T) {
	needSoft(t)
	page := pageOf(t)
	before, reported, after, ok := between(page, "reports")
	require.True(t, ok)
	if *update {
		page = before + reportsTable() + after
	} else {
		require.Equal(t, reportsTable(), reported, "go test ./internal/doctor -update writes it")
	}
	before, shown, after, ok := between(page, "causes")
	require.True(t, ok)
	if *update {
		shown = causesTable(slices.Collect(maps.Keys(seen)))
		require.NoError(t, os.WriteFile(evidence, []byte(before+shown+after), 0o644))
	}
	for _, c := range hints.Causes {
		if c.Untried == "" && noProof[c.ID] == "" {
			require.Contains(t, shown, "| ["+c.ID+"](", "no test shows it")
		}
	}
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	var sources strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		sources.Write(b)
	}
	count := 0
	for row := range strings.Lines(shown) {
		cells := strings.Split(row, " | ")
		if !strings.HasPrefix(row, "| [") {
			continue
		}
		count++
		name := strings.ReplaceAll(strings.TrimSuffix(cells[len(cells)-1], " |\n"), `\_`, "_")
		top, sub, _ := strings.Cut(name, "/")
		require.Contains(t, sources.String(), "\nfunc "+top+"(t *testing.T)", "a test that is not there")
		require.Contains(t, strings.ReplaceAll(sources.String(), " ", "_"), strings.ReplaceAll(sub, " ", "_"), "%s: a subtest that is not there", name)
	}
	require.Contains(t, shown, fmt.Sprintf("broken in %d ways", count))
}
