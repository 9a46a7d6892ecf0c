// Package testenv tells tests what the machine they run on must have, and starts the processes
// that they need as children of the test binary itself.
package testenv

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Names for [Need], which GPUFD_REQUIRE lists with commas between them.
const (
	GPU        = "gpu"        // a GPU, with GPUFD_DRIVER=cuda
	TwoGPUs    = "two"        // two GPUs that are each other's peers
	Python     = "python"     // Python with NumPy and PyTorch
	CC         = "cc"         // a C compiler
	Curl       = "curl"       // curl(1)
	Namespaces = "namespaces" // user, PID and mount namespaces
	GStreamer  = "gstreamer"  // GStreamer with its loader of elements in Python
)

// Need skips t if the machine has not got what a test needs, or fails it if GPUFD_REQUIRE lists
// that. why says what is missing.
func Need(t testing.TB, what string, have bool, why string) {
	t.Helper()
	switch {
	case have:
	case Required(what):
		t.Fatalf("GPUFD_REQUIRE lists %s, but: %s", what, why)
	default:
		t.Skipf("needs %s: %s", what, why)
	}
}

// Required reports whether GPUFD_REQUIRE lists what.
func Required(what string) bool {
	return slices.Contains(strings.Split(os.Getenv("GPUFD_REQUIRE"), ","), what)
}

// Prefix begins the variables of the environment by which tests give their children arguments.
const Prefix = "GPUFD_TEST_"

const childVar = Prefix + "CHILD"

// PlantVar is the variable that asks for a planted fault: tests that must notice it set it in a child.
const PlantVar = "GPUFD_PLANT"

// Child returns a command that runs this test binary again as the child process that role names, with
// args as os.Args[1:]. It is killed when ctx ends.
func Child(ctx context.Context, role string, args ...string) *exec.Cmd {
	exe, err := os.Executable() // an emulator does not run /proc/self/exe
	if err != nil {
		exe = os.Args[0]
	}
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(os.Environ(), childVar+"="+role)
	return cmd
}

// Role returns the role that [Child] gave this process, or "". TestMain asks for it first.
func Role() string { return os.Getenv(childVar) }
