package cutest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/internal/testenv/leak"
)

// Children are functions by name that tests run in processes of their own: they
// poison or count process-wide state, or are killed. A function fails with the
// error that it returns, and if it leaves something behind, unless it called
// [ExpectLeaks].
type Children map[string]func() error

// Child returns a command that runs the child with that name, one of those given
// to [Main], until ctx ends. It adds env to the environment.
func Child(ctx context.Context, name string, env ...string) *exec.Cmd {
	cmd := testenv.Child(ctx, name)
	// Without GORACE, each child of a binary with the race detector takes a second to end.
	cmd.Env = append(append(cmd.Env, "GORACE=atexit_sleep_ms=0"), env...)
	return cmd
}

// RunChild runs the child and does not return, if [Child] started this process.
// It is for a TestMain that does not use [Main].
func RunChild(children ...Children) { runChild(children) }

// runChild runs the child of children that this process is, if any.
func runChild(children []Children) {
	name := testenv.Role()
	if name == "" {
		return
	}
	before := Now()
	err := fmt.Errorf("no child %q", name)
	for _, c := range children {
		if f := c[name]; f != nil {
			err = testenv.Complaint(f)
		}
	}
	code := 0
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if !leaksExpected.Load() { // the software driver's memory is the parent's, too
		code = leak.Report(os.Stderr, code, leftHere(before))
	}
	os.Exit(code)
}

var leaksExpected atomic.Bool

// ExpectLeaks turns the check for leaks off in a child that leaves things behind
// on purpose or cannot help it, as with a driver that hangs. It does nothing for
// tests that run in the process itself.
func ExpectLeaks() { leaksExpected.Store(true) }

// keepWarm takes a GPU's primary context and keeps it while the tests run: making
// one takes a quarter of a second. It returns nil without a GPU.
func keepWarm() *cu.Context {
	if Kind() == cu.Soft {
		return nil
	}
	drv, err := open() // open for as long as the process
	if err != nil {
		return nil
	}
	dev, err := drv.Device(0)
	if err != nil {
		return nil
	}
	warm, _ := dev.PrimaryContext() // tests that need it report the error
	return warm
}
