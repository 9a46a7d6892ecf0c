package cutest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/leak"
	"github.com/gpufd/gpufd/internal/testenv"
)

// Main runs the tests with a directory of their own for the software driver's
// memory. It fails if they leave anything behind or misused the driver: see
// [Left]. In a process that [Child] started it runs that child instead, with the
// same checks. It does not return.
func Main(m *testing.M, children ...Children) {
	runChild(children)
	os.Exit(Run(m))
}

// Run is Main without children, for a TestMain that has more to do: it returns
// the exit code.
func Run(m *testing.M) int {
	if err := checkEnvironment(); err != nil {
		fmt.Fprintln(os.Stderr, "cutest:", err)
		return 1
	}
	dir, err := softDir()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cutest:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	defer runtime.KeepAlive(keepWarm())
	before := Now()
	code := m.Run()
	return leak.Report(os.Stderr, code, Left(before))
}

// checkEnvironment refuses an environment in which the tests would run, and pass,
// on another driver than was meant.
func checkEnvironment() error {
	switch kind := os.Getenv("GPUFD_DRIVER"); kind {
	case "cuda":
		return nil
	case "", "soft":
		if testenv.Required(testenv.GPU) && kind == "" {
			return errors.New("GPUFD_REQUIRE=gpu needs GPUFD_DRIVER=cuda, or soft for tests without a GPU")
		}
		return os.Setenv("GPUFD_DRIVER", cu.Soft.String()) // also for what opens a driver by itself
	default:
		return fmt.Errorf("GPUFD_DRIVER=%q: want soft or cuda", kind)
	}
}

// softDir makes the directory of the software driver's memory for this run,
// unless a parent process has done so.
func softDir() (string, error) {
	if os.Getenv("GPUFD_SOFT_DIR") != "" {
		return "", nil
	}
	dir, err := os.MkdirTemp(roomyDir(), "gpufd-test-")
	if err != nil {
		return "", err
	}
	return dir, os.Setenv("GPUFD_SOFT_DIR", dir)
}

// roomyDir returns /dev/shm if it has room for what tests share at once, else the
// temporary directory: in a container /dev/shm often has 64 MiB.
func roomyDir() string {
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil || st.Bavail*uint64(st.Bsize) < 1<<30 || unix.Access("/dev/shm", unix.W_OK) != nil {
		return ""
	}
	return "/dev/shm"
}
