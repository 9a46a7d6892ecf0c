package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// bundle is where the planted package lies built, as in a GPU machine's bundle.
var bundle string

const planted, quiet = "planted", "quiet"

// limit is how long a hung test may hang here: a slow process, as under an emulator, takes
// long to get that far. Tests that do not hang get a minute.
var limit = map[bool]time.Duration{false: 3 * time.Second, true: 6 * time.Second}[cutest.Emulated()]

const patience = time.Minute

// atOnce is how many tests run at once, unless -parallel says so: those that hang take no CPU.
const atOnce = "4"

// buildPlanted builds a package of testdata into the bundle.
func buildPlanted(name string) error {
	build := exec.Command("go", "test", "-c", "-o", filepath.Join(bundle, name, "suite.test"), "./testdata/"+name)
	build.Stderr = os.Stderr
	return build.Run()
}

func TestMain(m *testing.M) {
	memoryPatience = 300 * time.Millisecond
	code := 1
	var err error
	if bundle, err = os.MkdirTemp("", "gpufd-planted"); err == nil {
		err = errors.Join(buildPlanted(planted), buildPlanted(quiet))
	}
	if err == nil {
		err = runAtOnce()
	}
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	os.RemoveAll(bundle)
	os.Exit(code)
}

func runAtOnce() error {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if said {
		return nil
	}
	return flag.Set("test.parallel", atOnce)
}

// verdicts runs tests of the planted package, each cell's as those of a row, and
// returns the lines and the exit code.
func verdicts(t *testing.T, limit time.Duration, cells ...string) (lines []string, code int) {
	t.Helper()
	return config{ctx: t.Context(), root: bundle, bundle: true, limit: limit, said: io.Discard}.verdicts(t, planted, cells...)
}

func (c config) verdicts(t *testing.T, pkg string, cells ...string) (lines []string, code int) {
	t.Helper()
	var rows []row
	c.faults, c.atOnce = true, 2
	for i, cell := range cells {
		r := row{number: i + 1, fault: "a fault", software: true, hardware: true}
		require.NoError(t, r.readTests("`"+pkg+"` "+cell))
		rows = append(rows, r)
	}
	suites, err := c.gather(rows)
	require.NoError(t, err)
	c.runAll(suites)
	var out strings.Builder
	code = c.report(rows, suites, &out)
	return strings.Split(strings.TrimSpace(out.String()), "\n"), code
}

// Each way in which a test can end makes the right line, and the right exit code;
// none costs a test beside it anything.
func TestPlantedTestsMakeTheirLines(t *testing.T) {
	for _, c := range []struct{ cell, want string }{
		{"TestPasses", "PASS a fault"},
		{"TestFails", "FAIL " + planted + " TestFails: two and two are five"},
		{"TestAsserts", "FAIL " + planted + " TestAsserts: Not equal: expected: 4 actual : 5"},
		{"TestRenamed", "FAIL " + planted + " TestRenamed: did not run: there is no such test"},
		{"TestPasses, TestRenamed", "FAIL " + planted + " TestRenamed: did not run: there is no such test"},
		{"TestPasses/fault 1", "FAIL " + planted + " TestPasses/fault 1: did not run: there is no such test"},
		{"TestSkips", "FAIL skipped, and docs/faults-evidence.md does not say so: " + planted + " TestSkips: takes two devices, has 1"},
		{"TestSkips (skip: three devices)", "FAIL skipped, and docs/faults-evidence.md does not say so: " + planted + " TestSkips: takes two devices, has 1"},
		{"TestSkips (skip: two devices), TestPasses", "SKIP takes two devices, has 1"},
		{"TestSkips (skip: three) (skip: two devices), TestFails", "FAIL " + planted + " TestFails: two and two are five"},
		{"TestPanics", "FAIL " + planted + " TestPanics: crashed: planted"},
		{"TestCrashes", "FAIL " + planted + " TestCrashes: crashed: planted elsewhere"},
		{"TestExits", "FAIL " + planted + " TestExits: crashed: unexpected call to os.Exit(0) during test"},
		{"TestIsKilled", "FAIL " + planted + " TestIsKilled: the test process ended early: signal: killed"},
		{"TestHangs", "FAIL " + planted + " TestHangs: hung: test timed out after " + limit.String()},
		{"TestLies", "FAIL " + planted + " TestLies: a lie"},
		{"TestTable/fault 1", "PASS a fault"},
		{"TestTable/fault 1 and 2", "PASS a fault"},
		{"TestTable/fault 2 (skip: only root)", "SKIP only root can"},
		{"TestTable/fault 12", "FAIL " + planted + " TestTable/fault 12: bad"},
		{"TestTable/fault 3", "FAIL " + planted + " TestTable/fault 3: did not run: there is no such test"},
		{"TestTable", "FAIL " + planted + " TestTable: fault_12:_bad: bad"},
		{"TestAround/fault 1", "FAIL " + planted + " TestAround/fault 1: left something behind"},
		{"not tested yet: needs kernels", "SKIP needs kernels"},
		{"TestPasses; not tested yet: needs kernels", "SKIP in part: not tested yet: needs kernels"},
		{"TestFails; not tested yet: needs kernels", "FAIL " + planted + " TestFails: two and two are five"},
	} {
		t.Run(c.cell, func(t *testing.T) {
			t.Parallel()
			allowed := patience
			if c.cell == "TestHangs" {
				allowed = limit
			}
			lines, code := verdicts(t, allowed, c.cell, "TestPasses")
			require.Equal(t, "fault 01 "+c.want, lines[0])
			require.Equal(t, "fault 02 PASS a fault", lines[1])
			bad := strings.HasPrefix(c.want, "FAIL") || strings.Contains(c.want, "does not say so")
			require.Equal(t, bad, code == 1)
		})
	}
}

func TestStoppedTestIsKilled(t *testing.T) {
	t.Parallel()
	lines, code := verdicts(t, limit, "TestIsStopped")
	require.Equal(t, "fault 01 FAIL "+planted+" TestIsStopped: hung, and was killed after "+(limit+grace).String(), lines[0])
	require.Equal(t, "1 faults: 0 passed, 1 failed, 0 skipped", lines[1])
	require.Equal(t, 1, code)
}

// An interrupt ends the tests at once, and those that were not done have not
// passed.
func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	said, hangs := io.Pipe()
	go func() {
		for lines := bufio.NewScanner(said); lines.Scan(); {
			if strings.Contains(lines.Text(), "=== RUN   TestHangs") {
				cancel()
			}
		}
	}()
	c := config{ctx: ctx, root: bundle, bundle: true, limit: patience, verbose: true, said: hangs}
	lines, code := c.verdicts(t, planted, "TestHangs", "TestPasses", "TestLies")
	require.Equal(t, []string{
		"fault 01 FAIL planted TestHangs: interrupted", "fault 02 PASS a fault", "fault 03 FAIL planted TestLies: did not run: interrupted",
		"3 faults: 1 passed, 2 failed, 0 skipped",
	}, lines)
	require.Equal(t, 1, code)
	require.NoError(t, hangs.Close())
}

// What is left behind is everybody's fault who was there.
func TestLeakFailsAllRowsOfThePackage(t *testing.T) {
	t.Setenv("PLANTED_LEAK", "1")
	lines, code := verdicts(t, patience, "TestPasses", "TestTable/fault 1")
	for i := range 2 {
		require.Contains(t, lines[i], ": the tests passed but left behind: a planted thing")
	}
	require.Equal(t, 1, code)
}

// Without a bundle the package is built; one that cannot be fails its rows.
func TestSuitesAreBuilt(t *testing.T) {
	c := config{ctx: t.Context(), root: "../..", limit: 9 * time.Second, said: io.Discard}
	lines, code := c.verdicts(t, "internal/suite/testdata/planted", "TestPasses")
	require.Equal(t, "fault 01 PASS a fault", lines[0])
	require.Zero(t, code)
	lines, code = c.verdicts(t, "internal/suite/testdata", "TestPasses")
	require.Regexp(t, "^fault 01 FAIL .*no Go files", lines[0])
	require.Equal(t, 1, code)
}

// A bundle's rows are those for a GPU, and its packages those that need one.
func TestBundle(t *testing.T) {
	t.Setenv("GPUFD_DRIVER", "")
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "docs"), 0o700))
	require.NoError(t, os.Symlink(filepath.Join(bundle, planted), filepath.Join(dir, "there")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docs", "faults-evidence.md"), []byte(strings.Join([]string{
		"| # | fault | where | what happens | test | last run |",
		"| 1 | one | S G | … | `elsewhere` TestX; `there` TestPasses | – |",
		"| 2 | two | S | … | `there` TestFails | – |",
		"| 3 | three | G | … | `elsewhere` TestX | – |",
		"| 4 | four | G | … | `there` TestSkips (skip: two devices) | – |",
	}, "\n")), 0o600))
	var said, printed strings.Builder
	require.Equal(t, 1, run(t.Context(), []string{"-faults", "-bundle", dir, "-timeout", "9s"}, &printed, &said))
	require.Equal(t, "fault 01 PASS one\nfault 03 FAIL none of its tests is in the bundle\n"+
		"fault 04 SKIP takes two devices, has 1\n3 faults: 1 passed, 1 failed, 1 skipped\n", printed.String())
	printed.Reset()
	require.Equal(t, 0, run(t.Context(), []string{"-faults", "-bundle", dir, "-rows", "4, 1", "-v"}, &printed, &said))
	require.Regexp(t, regexp.MustCompile(`(?s)=== RUN   TestSkips.*takes two devices, has 1`), said.String())
	require.Equal(t, 2, run(t.Context(), []string{"-faults", "-bundle", dir, "-rows", "5"}, &printed, &said))
	require.Equal(t, 2, run(t.Context(), []string{"-faults", "-bundle", dir, "-rows", "x"}, &printed, &said))
	require.Equal(t, 2, run(t.Context(), []string{"-faults", "-bundle", t.TempDir()}, &printed, &said))
	require.Equal(t, 2, run(t.Context(), []string{"-nonsense"}, &printed, &said))
}

// A row that is for a GPU only is not run without one, and says so.
func TestRowsForAGPU(t *testing.T) {
	t.Setenv("GPUFD_DRIVER", "soft")
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "docs"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docs", "faults-evidence.md"), []byte("| 47 | x | G | … | `x` TestX | – |\n"), 0o600))
	t.Chdir(dir)
	var printed strings.Builder
	require.Equal(t, 0, run(t.Context(), []string{"-faults"}, &printed, io.Discard))
	require.Equal(t, "fault 47 SKIP needs a GPU\n1 faults: 0 passed, 0 failed, 1 skipped\n", printed.String())
}
