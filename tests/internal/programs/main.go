package programs

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv"
)

// Patience limits everything that a test does not measure. On a GPU some tests share 64 GiB.
var Patience = map[cu.Kind]time.Duration{cu.Soft: time.Minute, cu.CUDA: 3 * time.Minute}[cutest.Kind()]

// Main runs the tests of a package, or the child process that [Scene.Child] started.
func Main(m *testing.M, children cutest.Children) {
	cutest.RunChild(children)
	os.Exit(run(m))
}

// Scratch is a directory for what a package's tests build.
var Scratch string

func run(m *testing.M) int {
	var err error
	if Scratch, err = os.MkdirTemp("", "gpufd-tests-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(Scratch)
	flag.Parse()
	if runtime.GOMAXPROCS(0) < 4 && !cutest.Emulated() && !slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.parallel") }) {
		_ = flag.Set("test.parallel", "4") // tests here wait for processes most of the time
	}
	return cutest.Run(m)
}

// binDir returns the directory of the programs: GPUFD_BIN, or build/test of this checkout, where
// they are built once for all packages of tests.
var binDir = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("GPUFD_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	root, err := filepath.Abs(Root())
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "build", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-o", dir+"/", "./cmd/producer", "./cmd/consumer", "./cmd/launch", "./cmd/ring", "./cmd/gpufd")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	return dir, nil
})

// Root returns the root of the sources, or of the bundle for a GPU, from the directory in which tests run.
func Root() string {
	dir := "."
	for range 8 {
		if _, err := os.Stat(filepath.Join(dir, "examples", "c")); err == nil {
			return dir
		}
		dir = filepath.Join(dir, "..")
	}
	return ".."
}

// ProgramPath returns the path of one of gpufd's programs.
func ProgramPath(t testing.TB, name string) string {
	t.Helper()
	dir, err := binDir()
	require.NoError(t, err)
	return filepath.Join(dir, name)
}

// countsMemory reports whether each scene looks at the device's free memory: tests that share the
// device with others cannot.
func countsMemory() bool { return cutest.Kind() == cu.CUDA && !cutest.Shared() }

// Parallel lets t run beside other tests on the software driver. On a GPU each process that a
// test starts takes half a GiB, and the tests count memory.
func Parallel(t *testing.T) {
	if cutest.Kind() == cu.Soft {
		t.Parallel()
	}
}

// SkipOnSoft skips t on the software driver, or fails it where a GPU was promised
// and nobody chose the software driver.
func SkipOnSoft(t testing.TB, why string) {
	t.Helper()
	testenv.Need(t, testenv.GPU, cutest.Kind() == cu.CUDA, why)
}

// Long is the size of a buffer that takes the CPU a while to fill and to verify.
var Long = map[cu.Kind]string{cu.Soft: "256MiB", cu.CUDA: "2GiB"}[cutest.Kind()]

// CountsMemory is why tests that compare the device's free memory run alone.
const CountsMemory = "it counts the device's memory"

// FreeMemory is the free memory of the first device.
func FreeMemory(t testing.TB) uint64 {
	t.Helper()
	return cutest.FreeMemory(t, cutest.Device(t))
}
