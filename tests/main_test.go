package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// patience is how long anything may take that is no matter of the test. On a
// GPU there are tests of 64 GiB.
var patience = map[cu.Kind]time.Duration{cu.Soft: time.Minute, cu.CUDA: 3 * time.Minute}[cutest.Kind()]

// binDir is where the programs are built to.
var binDir string

// inherited are the descriptors that this process was started with.
var inherited = openFDs("self")

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		os.Exit(child(mode))
	}
	os.Exit(run(m))
}

// run is cutest.Main around a directory for the programs.
func run(m *testing.M) int {
	softDir, err := os.MkdirTemp(roomyDir(), "gpufd-tests-")
	if err == nil {
		defer os.RemoveAll(softDir)
		err = os.Setenv("GPUFD_SOFT_DIR", softDir)
	}
	if err == nil {
		binDir, err = os.MkdirTemp("", "gpufd-bin-") // /dev/shm may be noexec
		defer os.RemoveAll(binDir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tests:", err)
		return 1
	}
	before := cutest.Descriptors()
	code := m.Run()
	if left := cutest.Left(before); code == 0 && len(left) > 0 {
		fmt.Fprintf(os.Stderr, "tests: they passed but left behind:\n  %s\n", strings.Join(left, "\n  "))
		return 1
	}
	return code
}

// roomyDir is /dev/shm where it holds what these tests share at once, else the
// temporary directory: in a container /dev/shm often has 64 MiB.
func roomyDir() string {
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil || st.Bavail*uint64(st.Bsize) < 1<<30 || unix.Access("/dev/shm", unix.W_OK) != nil {
		return ""
	}
	return "/dev/shm"
}

// programs is the directory of the programs.
var programs = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("GPUFD_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	build := exec.Command("go", "build", "-o", binDir+"/", "github.com/gpufd/gpufd/cmd/producer", "github.com/gpufd/gpufd/cmd/consumer")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	return binDir, nil
})

func programPath(t testing.TB, name string) string {
	t.Helper()
	dir, err := programs()
	require.NoError(t, err)
	return filepath.Join(dir, name)
}

// needGPU skips t on the software driver, or fails it where a GPU was promised
// and nobody chose the software driver.
func needGPU(t testing.TB, why string) {
	t.Helper()
	switch {
	case cutest.Kind() == cu.CUDA:
	case os.Getenv("GPUFD_REQUIRE_GPU") == "1" && os.Getenv("GPUFD_DRIVER") != "soft":
		t.Fatalf("GPUFD_REQUIRE_GPU=1, but these tests run on the software driver: %s", why)
	default:
		t.Skip("needs a GPU (GPUFD_DRIVER=cuda): " + why)
	}
}

// long is the size of a buffer that takes a while to verify.
var long = map[cu.Kind]string{cu.Soft: "256MiB", cu.CUDA: "2GiB"}[cutest.Kind()]

// keepContext keeps the primary context of this process alive on a GPU, where
// making one for every look at the memory would take most of the time.
var keepContext = sync.OnceValue(func() error {
	if cutest.Kind() != cu.CUDA {
		return nil
	}
	drv, err := cutest.Open()
	if err != nil {
		return err
	}
	dev, err := drv.Device(0)
	if err != nil {
		return err
	}
	kept, err = dev.PrimaryContext()
	return err
})

var kept *cu.Context

// freeMemory is the free memory of the first device.
func freeMemory(t testing.TB) uint64 {
	t.Helper()
	dev := cutest.Device(t)
	require.NoError(t, keepContext())
	return cutest.FreeMemory(t, dev)
}
