package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// bundled is a directory with the planted packages as a GPU machine's bundle has them.
func bundled(t *testing.T) string {
	t.Helper()
	t.Setenv("GPUFD_DRIVER", "")
	dir := t.TempDir()
	for _, name := range []string{planted, quiet} {
		require.NoError(t, os.Symlink(filepath.Join(bundle, name), filepath.Join(dir, name)))
	}
	return dir
}

// smi puts a program before nvidia-smi that says how many MiB are in use: first, then later.
func smi(t *testing.T, first, later int) {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\n[ -e \"$0.asked\" ] && echo " + strconv.Itoa(later) + " || { touch \"$0.asked\"; echo " + strconv.Itoa(first) + "; }\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(script), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// ran runs the program, and returns what it printed.
func ran(t *testing.T, args ...string) (code int, out, said string) {
	t.Helper()
	var printed, told strings.Builder
	code = run(t.Context(), args, &printed, &told)
	return code, printed.String(), told.String()
}

// only writes the tests to run.
func only(t *testing.T, names ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "only")
	var lines strings.Builder
	for _, n := range names {
		lines.WriteString(planted + " " + n + "\n")
	}
	require.NoError(t, os.WriteFile(path, []byte(lines.String()), 0o600))
	return path
}

// What ran, what failed and why, what was not run and why: all of it is said.
func TestSummary(t *testing.T) {
	smi(t, 3, 3)
	dir := bundled(t)
	code, out, said := ran(t, "-bundle", dir, "-slowest", "1", "-only", only(t, "TestPasses", "TestSkips", "TestTable"))
	require.Equal(t, 1, code)
	require.Equal(t, "FAIL planted: 3 passed, 2 failed, 2 skipped, ", said[:strings.Index(said, "skipped, ")+len("skipped, ")])
	require.Contains(t, out, "--- FAIL: planted TestTable/fault_12:_bad: bad\n")
	require.Contains(t, out, "not run: only root can: planted TestTable/fault_2:_skipped\n")
	require.Contains(t, out, "not run: takes two devices, has 1: planted TestSkips\n")
	require.Regexp(t, `slow: +\d+\.\d\d s planted Test`, out)
	require.True(t, strings.HasSuffix(out, "\n3 passed, 2 failed, 2 skipped\n"), out)
	code, out, _ = ran(t, "-bundle", dir, "-only", only(t, "TestPasses"))
	require.Zero(t, code)
	require.True(t, strings.HasSuffix(out, "\n1 passed, 0 failed, 0 skipped\n"), out)
}

// A test that is not there has not passed, nor has a run without tests.
func TestNothingRan(t *testing.T) {
	smi(t, 3, 3)
	code, out, _ := ran(t, "-bundle", bundled(t), "-only", only(t, "TestPasses", "TestRenamed"))
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "--- FAIL: planted TestRenamed: did not run: there is no such test\n")
	code, out, _ = ran(t, "-bundle", bundled(t), "elsewhere")
	require.Equal(t, 1, code)
	require.Contains(t, out, "--- FAIL: elsewhere: it is not in the bundle\n")
	code, out, _ = ran(t, "-bundle", bundled(t), quiet, "elsewhere")
	require.Equal(t, 1, code, out)
}

// What has to have a GPU to itself waits until the others have ended.
func TestWhatRunsAloneIsDeferred(t *testing.T) {
	smi(t, 3, 2)
	dir := bundled(t)
	code, out, said := ran(t, "-bundle", dir, "-together", planted, "-only", only(t, "TestRunsAlone", "TestPasses"))
	require.Zero(t, code, out)
	require.Contains(t, out, "2 passed, 0 failed, 0 skipped")
	require.Equal(t, 1, strings.Count(said, "planted: "), said)
	require.NotContains(t, out, "runs alone")
}

// The memory that is left in use is noticed behind tests that do not count it.
func TestLeftGPUMemoryIsNoticed(t *testing.T) {
	smi(t, 3, 4)
	code, out, _ := ran(t, "-bundle", bundled(t), "-together", planted, "-only", only(t, "TestPasses"))
	require.Equal(t, 1, code)
	require.Contains(t, out, "--- FAIL: planted: left behind, by one of planted: 4 MiB of GPU memory are in use, before it were 3\n")
}

// What has failed beside others is not tried again alone.
func TestFailureIsNotDeferred(t *testing.T) {
	smi(t, 3, 3)
	code, out, _ := ran(t, "-bundle", bundled(t), "-together", planted, "-only", only(t, "TestFailsBeside"))
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "--- FAIL: planted TestFailsBeside/fails: only beside others\n")
}

// The stack of a crash is printed, whichever test was being looked at.
func TestCrashIsPrinted(t *testing.T) {
	smi(t, 3, 3)
	code, out, _ := ran(t, "-bundle", bundled(t), "-only", only(t, "TestPanicsBeside"))
	require.Equal(t, 1, code)
	require.Contains(t, out, "panic: planted in parallel")
	require.Contains(t, out, "goroutine ")
}

// Tests, fuzzers' seeds and examples are dealt; benchmarks are not.
func TestNames(t *testing.T) {
	s := &suite{config: config{ctx: t.Context(), root: bundle}, pkg: quiet, binary: filepath.Join(bundle, quiet, "suite.test")}
	tests, err := s.names()
	require.NoError(t, err)
	var names []string
	for _, one := range tests {
		names = append(names, one.name)
	}
	require.ElementsMatch(t, []string{"TestQuiet", "TestLeft", "FuzzQuiet", "Example_quiet"}, names)
}

// Each test is dealt to one process.
func TestDeal(t *testing.T) {
	var tests []test
	for i := range 3*perBatch + 1 {
		tests = append(tests, test{pkg: planted, name: "Test" + strconv.Itoa(i)})
	}
	var dealt []string
	place := map[string]int{}
	batches := (&suite{pkg: planted}).deal(tests)
	require.Len(t, batches, 4)
	for i, b := range batches {
		require.LessOrEqual(t, len(b.tests), perBatch+2)
		for _, one := range b.tests {
			dealt = append(dealt, one.name)
			if at, seen := place[one.name]; seen {
				require.Equal(t, at, i)
			}
			place[one.name] = i
		}
	}
	require.Len(t, dealt, len(tests))
	require.Len(t, place, 3*perBatch+1)
}

// The tests that call for two devices are found, by way of whatever function.
func TestTwo(t *testing.T) {
	code, out, said := ran(t, "-two", "testdata/planted")
	require.Zero(t, code, said)
	require.Equal(t, "testdata/planted TestOfTwoDevices\n", out)
	_, out, _ = ran(t, "-two", "../../cu", "../../vmm")
	for _, name := range []string{"../../cu TestPeerAccess", "../../cu TestPeerCopies", "../../vmm TestImportAllocationOfAnotherDevice"} {
		require.Contains(t, out, name+"\n")
	}
	require.NotContains(t, out, "TestStreamCallsInOrder")
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-rows", "1"}, {"-only", "/nowhere"}, {"-only", "/dev/null", "./..."}, {"-only", "/dev/null", "-faults"}, {"-j", "x"}, {"./nowhere"}} {
		code, _, said := ran(t, args...)
		require.Equal(t, 2, code, args)
		require.NotEmpty(t, said)
	}
}

// What has not ended by then has failed, and is named.
func TestDeadline(t *testing.T) {
	smi(t, 3, 3)
	code, out, _ := ran(t, "-bundle", bundled(t), "-deadline", "2s", "-only", only(t, "TestHangs"))
	require.Equal(t, 1, code)
	require.Regexp(t, "--- FAIL: planted( TestHangs)?: interrupted\n", out)
}
