package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
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

// verdicts runs tests of the planted package, as a bundle has it, and returns what failed and the exit code.
func verdicts(t *testing.T, limit time.Duration, tests ...string) (failures string, code int) {
	t.Helper()
	var out strings.Builder
	c := config{ctx: t.Context(), root: bundle, bundle: true, limit: limit, said: io.Discard, out: &out, atOnce: 2, only: only(t, tests...)}
	suites, err := c.gather()
	require.NoError(t, err)
	c.runAll(suites)
	code = c.summary(suites, 0)
	return out.String(), code
}

// A test fails for the right reason however it ends, and costs a test beside it nothing.
func TestPlantedTestsFail(t *testing.T) {
	for name, want := range map[string]string{
		"TestPasses":   "",
		"TestSkips":    "",
		"TestFails":    "two and two are five",
		"TestAsserts":  "Not equal: expected: 4 actual : 5",
		"TestRenamed":  "did not run: there is no such test",
		"TestPanics":   "crashed: planted",
		"TestCrashes":  "crashed: planted elsewhere",
		"TestExits":    "crashed: unexpected call to os.Exit(0) during test",
		"TestIsKilled": "the test process ended early: signal: killed",
		"TestHangs":    "hung: test timed out after " + limit.String(),
		"TestLies":     "a lie",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			allowed := patience
			if name == "TestHangs" {
				allowed = limit
			}
			out, code := verdicts(t, allowed, name, "TestPasses")
			require.Equal(t, want != "", code == 1, out)
			require.NotContains(t, out, "FAIL: "+planted+" TestPasses")
			if want != "" {
				require.Contains(t, out, "--- FAIL: "+planted+" "+name+": "+want+"\n")
			}
		})
	}
}

func TestStoppedTestIsKilled(t *testing.T) {
	t.Parallel()
	out, code := verdicts(t, limit, "TestIsStopped")
	require.Contains(t, out, "TestIsStopped: hung, and was killed after "+(limit+grace).String())
	require.Equal(t, 1, code)
}
