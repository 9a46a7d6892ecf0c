package cu_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
)

// soon is a deadline for what should happen at once; it is long because
// machines are slow, and costs nothing when all is well.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// driverResolver is the resolver of the driver that tests run on.
func driverResolver(t testing.TB) sys.Resolver {
	t.Helper()
	r, err := kindsResolver()
	if err != nil {
		cutest.SkipWithoutGPU(t, err.Error())
	}
	return r
}

// kindsResolver is driverResolver where there is no test.
func kindsResolver() (sys.Resolver, error) {
	if cutest.Kind() == cu.Soft {
		return soft.Resolver, nil
	}
	r, _, err := sys.OpenCUDA()
	return r, err
}

var errHidden = errors.New("hidden by the test")

// without is a driver that lacks some symbols.
func without(t testing.TB, symbols ...string) cu.Option {
	t.Helper()
	r := driverResolver(t)
	return cu.WithResolver(func(symbol string) (uintptr, error) {
		for _, s := range symbols {
			if s == symbol {
				return 0, errHidden
			}
		}
		return r(symbol)
	})
}

// A spy counts the calls that reach the driver and succeed. Its faults answer in
// the driver's place.
type spy struct {
	*cutest.Faults
	mu     sync.Mutex
	counts map[string]int
	order  []string
}

// spied opens the driver with a spy around it, and returns its first device, too.
func spied(t testing.TB, opts ...cu.Option) (*spy, *cu.Driver, *cu.Device) {
	t.Helper()
	s := &spy{Faults: cutest.NewFaults(t), counts: map[string]int{}}
	drv := cutest.Driver(t, append(opts, s.Option(), cu.WithHook(s.hook))...)
	return s, drv, firstDevice(t, drv)
}

func (s *spy) hook(call sys.Call, next func() sys.CUresult) sys.CUresult {
	r := next()
	if r == sys.CUDA_SUCCESS {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.counts[call.Symbol()]++
		s.order = append(s.order, call.Symbol())
	}
	return r
}

func (s *spy) count(symbol string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[symbol]
}

// calls is how many calls succeeded in all.
func (s *spy) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.order)
}

// sequence lists those of symbols that were called, in order.
func (s *spy) sequence(symbols ...string) (seq []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, called := range s.order {
		for _, want := range symbols {
			if called == want {
				seq = append(seq, called)
			}
		}
	}
	return seq
}

// firstDevice is drv's first device.
func firstDevice(t testing.TB, drv *cu.Driver) *cu.Device {
	t.Helper()
	return ok(drv.Device(0))(t)
}

// spiedContext is spied, with the first device and its primary context.
func spiedContext(t testing.TB, opts ...cu.Option) (*spy, *cu.Driver, *cu.Device, *cu.Context) {
	t.Helper()
	s, drv, dev := spied(t, opts...)
	return s, drv, dev, cutest.Context(t, dev)
}

// driverContext returns the driver, its first device and the primary context of that.
func driverContext(t testing.TB, opts ...cu.Option) (*cu.Driver, *cu.Device, *cu.Context) {
	t.Helper()
	drv := cutest.Driver(t, opts...)
	dev := firstDevice(t, drv)
	return drv, dev, cutest.Context(t, dev)
}

// deviceContext returns the first device and its primary context.
func deviceContext(t testing.TB) (*cu.Device, *cu.Context) {
	t.Helper()
	dev := cutest.Device(t)
	return dev, cutest.Context(t, dev)
}

// freeMemory returns how much memory of the context's device is free.
func freeMemory(t testing.TB, ctx *cu.Context) uint64 {
	t.Helper()
	free, _, err := ctx.MemInfo()
	require.NoError(t, err)
	return free
}

// granularity is what sizes of shareable memory are multiples of.
func granularity(t testing.TB, dev *cu.Device) uint64 {
	t.Helper()
	g, _, err := dev.Granularity(cu.HandleFD)
	require.NoError(t, err)
	return g
}

// eventuallyCollected collects garbage until what was lost has been cleaned up.
func eventuallyCollected(t testing.TB, done func() bool) {
	t.Helper()
	require.Eventually(t, func() bool { runtime.GC(); return done() }, 30*time.Second, time.Millisecond)
}

// childDevice is firstDevice for children, which have no test.
func childDevice() (*cu.Device, error) {
	drv := get(cutest.Open())
	return drv.Device(0)
}

// must ends a child, or a test, that cannot go on.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func get[T any](v T, err error) T {
	must(err)
	return v
}

// ok returns what a call returned, and ends the test if that failed: ok(ctx.NewStream())(t).
func ok[T any](v T, err error) func(t testing.TB, about ...any) T {
	return func(t testing.TB, about ...any) T {
		t.Helper()
		require.NoError(t, err, about...)
		return v
	}
}

// readBack reads n values of device memory.
func readBack[T any](t testing.TB, ctx *cu.Context, p cu.DevicePtr, n int) []T {
	t.Helper()
	got := make([]T, n)
	require.NoError(t, cu.CopyToHost(ctx, got, p))
	return got
}

// untilEnd returns c, which is closed when t ends.
func untilEnd[C io.Closer](t testing.TB, c C) C {
	t.Helper()
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// errOf returns the error of a call that returns something else, too.
func errOf[T any](_ T, err error) error { return err }

// runChild runs one of children to its end.
func runChild(t testing.TB, name string) {
	t.Helper()
	out, err := cutest.Child(soon(t), name).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// noEnd is a context that cannot end, with which waits are made in the driver.
type noEnd struct{ context.Context }

func (noEnd) Done() <-chan struct{} { return nil }
