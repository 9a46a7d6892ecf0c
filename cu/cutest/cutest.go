package cutest

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
)

// Kind is the kind of driver that tests run on: GPUFD_DRIVER, else the
// software driver.
func Kind() cu.Kind {
	if os.Getenv("GPUFD_DRIVER") == cu.CUDA.String() {
		return cu.CUDA
	}
	return cu.Soft
}

var (
	mu    sync.Mutex
	leaks []cu.Leak
)

// Open opens a driver of the kind that tests run on. Leaks that the garbage
// collector reports are kept for [Main].
func Open(opts ...cu.Option) (*cu.Driver, error) {
	opts = append([]cu.Option{cu.WithLeakHandler(keep)}, opts...)
	if Kind() == cu.Soft {
		opts = append([]cu.Option{cu.WithResolver(soft.Resolver)}, opts...)
	}
	return cu.Open(opts...)
}

func keep(l cu.Leak) {
	mu.Lock()
	defer mu.Unlock()
	leaks = append(leaks, l)
}

// TakeLeaks returns the leaks reported since the last call and forgets them,
// for tests that leak on purpose.
func TakeLeaks() []cu.Leak {
	mu.Lock()
	defer mu.Unlock()
	taken := leaks
	leaks = nil
	return taken
}

// Driver opens the driver that tests run on, or skips t where there is no GPU
// to run on.
func Driver(t testing.TB, opts ...cu.Option) *cu.Driver {
	t.Helper()
	d, err := Open(opts...)
	if err != nil {
		NoGPU(t, fmt.Sprintf("GPUFD_DRIVER=%s: %v", Kind(), err))
	}
	return d
}

// NoGPU skips t for want of a GPU, or fails it with GPUFD_REQUIRE_GPU=1, or on
// the software driver, which is always there.
func NoGPU(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("GPUFD_REQUIRE_GPU") == "1" || Kind() == cu.Soft {
		t.Fatal(why)
	}
	t.Skip(why)
}

// Device returns the first device.
func Device(t testing.TB) *cu.Device {
	t.Helper()
	dev, err := Driver(t).Device(0)
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// Context returns the primary context of dev, closed when t ends.
func Context(t testing.TB, dev *cu.Device) *cu.Context {
	t.Helper()
	ctx, err := dev.PrimaryContext()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ctx.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx
}

// FreeMemory is the free memory of dev in bytes, as its driver accounts for
// all processes.
func FreeMemory(t testing.TB, dev *cu.Device) uint64 {
	t.Helper()
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
