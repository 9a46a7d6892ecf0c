// Package leak tells what a test run left behind: descriptors and goroutines,
// with the stacks that made them. It knows nothing of CUDA; package cutest adds
// that.
//
//	func TestMain(m *testing.M) { os.Exit(leak.Check(m.Run)) }
package leak

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/gpufd/gpufd/internal/testenv"
)

// A State is what exists at one time.
type State struct {
	fds        FDs
	goroutines map[string]string
}

// Now returns the present state. From then on the makers of descriptors are
// recorded.
func Now() *State {
	warmUp()
	watch()
	return &State{OpenFDs(), goroutines()}
}

// warmUp makes the runtime open what it keeps: its poller.
func warmUp() {
	if r, w, err := os.Pipe(); err == nil {
		_ = r.SetDeadline(time.Now().Add(time.Hour))
		_, _ = r.Close(), w.Close()
	}
}

// PatienceEnv shortens how long a process waits for leftovers to end. A test sets
// it in the environment of a process that it makes leave something behind.
const PatienceEnv = testenv.Prefix + "PATIENCE"

// patience returns how long leftovers may take to end.
func patience() time.Duration {
	if d, err := time.ParseDuration(os.Getenv(PatienceEnv)); err == nil {
		return d
	}
	return 3 * time.Second
}

// Left lists what was not there in s, and what others add. It gives what is about
// to end time for that. It collects no garbage, so it lists what only the garbage
// collector would close.
func (s *State) Left(others ...func() []string) (left []string) {
	patience := patience()
	deadline := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, patience/20) {
		left = append(OpenFDs().Since(s.fds), newGoroutines(s.goroutines)...)
		for _, f := range others {
			left = append(left, f()...)
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		time.Sleep(pause)
	}
}

// Check runs the tests and returns their exit code, or 1 if they passed but left
// something behind. It prints what they left in any case.
func Check(run func() int) int {
	before := Now()
	code := run()
	return Report(os.Stderr, code, before.Left())
}

// Report prints left, if there is any, and returns the exit code for tests that
// ended with code.
func Report(w io.Writer, code int, left []string) int {
	if len(left) == 0 {
		return code
	}
	did := "passed but"
	if code != 0 {
		did = "failed, and"
	}
	fmt.Fprintf(w, "leak: the tests %s left behind:\n", did)
	for _, l := range left {
		fmt.Fprintf(w, "  %s\n", strings.TrimSuffix(l, "\n"))
	}
	return max(code, 1)
}
