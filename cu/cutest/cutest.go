package cutest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/internal/testenv"
)

// Kind returns the kind of driver that tests run on: GPUFD_DRIVER, or by default
// the software driver.
func Kind() cu.Kind {
	if os.Getenv("GPUFD_DRIVER") == cu.CUDA.String() {
		return cu.CUDA
	}
	return cu.Soft
}

// Open opens a driver of the kind that tests run on. A hook next to the driver
// records what it gives out, which must be given back before the tests end. Leaks
// that the garbage collector reports are kept for [Main]. Benchmarks run without
// the hook, which they would measure.
func Open(opts ...cu.Option) (*cu.Driver, error) {
	return open(append(opts[:len(opts):len(opts)], accounts()...)...)
}

// open is Open without a hook.
func open(opts ...cu.Option) (*cu.Driver, error) {
	opts = append([]cu.Option{cu.WithLeakHandler(keep)}, opts...)
	if Kind() == cu.Soft {
		opts = append([]cu.Option{cu.WithResolver(soft.Resolver)}, opts...)
	}
	return cu.Open(opts...)
}

func accounts() []cu.Option {
	if f := flag.Lookup("test.bench"); f != nil && f.Value.String() != "" {
		return nil
	}
	hooks := []cu.Option{cu.WithHook(table.Hook)}
	return hooks
}

// Driver opens the driver that tests run on, or skips t if that needs a GPU and
// there is none.
func Driver(t testing.TB, opts ...cu.Option) *cu.Driver {
	t.Helper()
	d, err := Open(opts...)
	if err != nil {
		SkipWithoutGPU(t, fmt.Sprintf("GPUFD_DRIVER=%s: %v", Kind(), err))
	}
	return d
}

// SkipWithoutGPU skips t because there is no GPU. It fails t instead if GPUFD_REQUIRE lists gpu, and on
// the software driver, which is always there.
func SkipWithoutGPU(t testing.TB, why string) {
	t.Helper()
	if Kind() == cu.Soft {
		t.Fatal(why)
	}
	testenv.Need(t, testenv.GPU, false, why)
}

// SharedGPU is the environment variable that scripts/run-gpu.py sets while other tests use the GPU. RunsAlone
// begins the reason of a skipped test that would disturb them, which the script then runs by itself.
const (
	SharedGPU = "GPUFD_SHARED_GPU"
	RunsAlone = "runs alone: "
)

// Shared reports whether other tests use the GPU at the same time, so that its
// free memory says nothing.
func Shared() bool { return Kind() == cu.CUDA && os.Getenv(SharedGPU) == "1" }

// Alone skips t if other tests use the GPU at the same time, to be run when they are done. why says
// what t does to the whole device.
func Alone(t testing.TB, why string) {
	t.Helper()
	if Shared() {
		t.Skip(RunsAlone + why)
	}
}

// Device returns the first device of [Driver].
func Device(t testing.TB, opts ...cu.Option) *cu.Device {
	t.Helper()
	dev, err := Driver(t, opts...).Device(0)
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// Proven is the reason of the skips of [ProvenOnSoft].
const Proven = "one more of what else runs here or on the software driver (GPUFD_ALL=1 runs it)"

// All reports whether tests that [ProvenOnSoft] skips run on a GPU, too.
func All() bool { return os.Getenv("GPUFD_ALL") == "1" }

// ProvenOnSoft skips t on a GPU, unless GPUFD_ALL=1: others of its kind run
// there, or nothing of it reaches the driver, and starting a GPU's driver takes a
// process half a second.
func ProvenOnSoft(t testing.TB) {
	t.Helper()
	if Kind() == cu.CUDA && !All() {
		t.Skip(Proven)
	}
}

// TwoDevices returns the first two devices of drv. If there is only one it skips t, or fails it
// if GPUFD_REQUIRE lists two.
func TwoDevices(t testing.TB, drv *cu.Driver) (a, b *cu.Device) {
	t.Helper()
	devices := drv.Devices()
	testenv.Need(t, testenv.TwoGPUs, len(devices) >= 2, fmt.Sprintf("there are %d devices", len(devices)))
	return devices[0], devices[1]
}

// FreeMemory returns the free memory of dev in bytes, as its driver accounts for
// all processes. A test that calls it runs [Alone].
func FreeMemory(t testing.TB, dev *cu.Device) uint64 {
	t.Helper()
	Alone(t, "it counts the device's memory")
	ctx, err := dev.PrimaryContext()
	if err != nil {
		t.Fatal(err)
	}
	free, _, err := ctx.MemInfo()
	if err = errors.Join(err, ctx.Close()); err != nil {
		t.Fatal(err)
	}
	return free
}
