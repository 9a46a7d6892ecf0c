package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv"
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

// run is cutest.Run with a directory for the programs.
func run(m *testing.M) int {
	var err error
	if binDir, err = os.MkdirTemp("", "gpufd-bin-"); err != nil {
		fmt.Fprintln(os.Stderr, "tests:", err)
		return 1
	}
	defer os.RemoveAll(binDir)
	return cutest.Run(m)
}

// programs is the directory of the programs.
var programs = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("GPUFD_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	build := exec.Command("go", "build", "-o", binDir+"/",
		"github.com/gpufd/gpufd/cmd/producer", "github.com/gpufd/gpufd/cmd/consumer", "github.com/gpufd/gpufd/cmd/launch", "github.com/gpufd/gpufd/cmd/ring",
		"github.com/gpufd/gpufd/cmd/gpufd")
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
	case testenv.Required(testenv.GPU) && os.Getenv("GPUFD_DRIVER") != "soft":
		t.Fatalf("GPUFD_REQUIRE lists gpu, but these tests run on the software driver: %s", why)
	default:
		t.Skip("needs a GPU (GPUFD_DRIVER=cuda): " + why)
	}
}

// long is the size of a buffer that takes the CPU a while to fill and to verify.
var long = map[cu.Kind]string{cu.Soft: "256MiB", cu.CUDA: "2GiB"}[cutest.Kind()]

// countsMemory is why tests that compare the device's free memory run alone.
const countsMemory = "it counts the device's memory"

// freeMemory is the free memory of the first device.
func freeMemory(t testing.TB) uint64 {
	t.Helper()
	return cutest.FreeMemory(t, cutest.Device(t))
}
