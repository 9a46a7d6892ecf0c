package cutest

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/sys"
)

// faulty is a device whose driver meets faults of t.
func faulty(t testing.TB) (*Faults, *cu.Device) {
	faults := NewFaults(t)
	return faults, Device(t, faults.Option())
}

// A fault has the name that documentation has, or that of a symbol. It is there
// until it is stopped.
func TestFaultByName(t *testing.T) {
	for _, name := range []string{"cuMemGetInfo", "cuMemGetInfo_v2"} {
		faults, dev := faulty(t)
		ctx := Context(t, dev)
		fault := faults.Fail(name, cu.ErrOutOfMemory)
		for range 2 {
			_, _, err := ctx.MemInfo()
			require.ErrorIs(t, err, cu.ErrOutOfMemory)
		}
		_, err := ctx.ID()
		require.NotErrorIs(t, err, cu.ErrOutOfMemory, "of another function")
		fault.Stop()
		fault.Stop()
		_, _, err = ctx.MemInfo()
		require.NoError(t, err)
	}
}

// A plain name stands for all versions, a symbol for itself.
func TestFaultOfAVersion(t *testing.T) {
	faults, dev := faulty(t)
	call := dev.Driver().Caller()
	get, get2 := func() sys.CUresult { return call.CuCtxGetDevice(new(sys.CUdevice)) }, func() sys.CUresult { return call.CuCtxGetDevice_v2(new(sys.CUdevice), 0) }

	all := faults.Fail("cuCtxGetDevice", cu.ErrOutOfMemory)
	require.Equal(t, sys.CUDA_ERROR_OUT_OF_MEMORY, get())
	require.Equal(t, sys.CUDA_ERROR_OUT_OF_MEMORY, get2())
	faults.Fail("cuCtxGetDevice_v2", cu.ErrNotReady)
	require.Equal(t, sys.CUDA_ERROR_OUT_OF_MEMORY, get())
	require.Equal(t, sys.CUDA_ERROR_NOT_READY, get2(), "the last that was set counts")
	all.Stop()
	require.NotEqual(t, sys.CUDA_ERROR_OUT_OF_MEMORY, get())
	require.Equal(t, sys.CUDA_ERROR_NOT_READY, get2())
}

func TestFaultOfTheNthCall(t *testing.T) {
	faults, dev := faulty(t)
	ctx := Context(t, dev)
	require.NoError(t, memInfo(ctx))
	faults.FailNth("cuMemGetInfo", 2, cu.ErrOutOfMemory)
	require.NoError(t, memInfo(ctx))
	require.ErrorIs(t, memInfo(ctx), cu.ErrOutOfMemory)
	require.NoError(t, memInfo(ctx))
}

func memInfo(ctx *cu.Context) error {
	_, _, err := ctx.MemInfo()
	return err
}

func second[T any](_ T, err error) error { return err }

// A hook may make the call, or not, and knows which it is.
func TestFaultOfItsOwn(t *testing.T) {
	faults, dev := faulty(t)
	ctx := Context(t, dev)
	var seen []string
	faults.Hook("cuMemGetInfo", func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		seen = append(seen, call.Symbol())
		if r := next(); len(seen) == 1 {
			return r
		}
		return sys.CUDA_ERROR_NOT_READY
	})
	require.NoError(t, memInfo(ctx))
	call := dev.Driver().Caller()
	require.Equal(t, sys.CUDA_ERROR_NOT_READY, call.With(ctx.Handle()).CuMemGetInfo_v2(new(uintptr), new(uintptr)))
	require.Equal(t, []string{"cuMemGetInfo_v2", "cuMemGetInfo_v2"}, seen)
}

// Faults can be set before a driver is opened, and serve several.
func TestFaultOfOpening(t *testing.T) {
	faults := NewFaults(t)
	fault := faults.Fail("cuInit", cu.ErrNoDevice)
	for range 2 {
		_, err := Open(faults.Option())
		require.ErrorIs(t, err, cu.ErrNoDevice)
	}
	fault.Stop()
	_, err := Open(faults.Option())
	if Kind() == cu.Soft {
		require.NoError(t, err)
	}
}

// A fault that cannot fire ends the test at once, and says what would.
func TestFaultOfNoFunction(t *testing.T) {
	for name, want := range map[string]string{
		"cuMemAlocAsync": "cuMemAllocAsync",
		"cumemalloc":     "cuMemAlloc, ",
		"cuMemAlloc_v7":  "cuMemAlloc, ",
		"MemAlloc":       "cuMemAlloc, ",
		"":               "cu",
	} {
		went := false
		got := record(t, func(t testing.TB) {
			NewFaults(t).Fail(name, cu.ErrOutOfMemory)
			went = true
		})
		require.False(t, went)
		require.Len(t, got.failures, 1)
		require.Contains(t, got.failures[0], `the driver API has no function "`+name+`"; the nearest are `)
		require.Contains(t, got.failures[0], want)
	}
	got := record(t, func(t testing.TB) { NewFaults(t).FailNth("cuMemAlloc", 0, cu.ErrOutOfMemory) })
	require.Equal(t, []string{"cutest: FailNth of call 0: the next call is 1"}, got.failures)
}

// A fault that never fired fails the test, which may have proved nothing.
func TestFaultThatNeverFired(t *testing.T) {
	for name, c := range map[string]struct {
		test func(testing.TB)
		want string // "" if it passes
	}{
		"fired": {func(t testing.TB) {
			faults, dev := faulty(t)
			faults.Fail("cuDevicePrimaryCtxRetain", cu.ErrOutOfMemory)
			_, err := dev.PrimaryContext()
			require.ErrorIs(t, err, cu.ErrOutOfMemory)
		}, ""},
		"at the very end": {func(t testing.TB) {
			faults, dev := faulty(t)
			Context(t, dev)
			faults.Hook("cuDevicePrimaryCtxRelease", func(_ sys.Call, next func() sys.CUresult) sys.CUresult { return next() })
		}, ""},
		"skipped": {func(t testing.TB) {
			faults, _ := faulty(t)
			faults.Fail("cuMemAlloc", cu.ErrOutOfMemory)
			t.Skip("why")
		}, ""},
		"not called": {func(t testing.TB) {
			faults, dev := faulty(t)
			Context(t, dev)
			faults.Fail("cuDevicePrimaryCtxReset", cu.ErrOutOfMemory)
		}, `the fault in cuDevicePrimaryCtxReset, set at fault_test.go:\d+, never fired: it was not called; ` +
			`the most similar functions called are cuDevicePrimaryCtxRe`},
		"not called then": {func(t testing.TB) {
			faults, dev := faulty(t)
			ctx := Context(t, dev)
			require.NoError(t, memInfo(ctx))
			faults.Fail("cuMemGetInfo", cu.ErrOutOfMemory).Stop()
			require.NoError(t, memInfo(ctx))
		}, "never fired: it was called 2 times, but not while the fault was set"},
		"not called so often": {func(t testing.TB) {
			faults, dev := faulty(t)
			ctx := Context(t, dev)
			faults.FailNth("cuMemGetInfo", 2, cu.ErrOutOfMemory)
			require.NoError(t, memInfo(ctx))
		}, "never fired: it was called once, 1 while the fault was set, which is for call 2"},
		"in no driver": {func(t testing.TB) {
			NewFaults(t).Fail("cuMemAlloc", cu.ErrOutOfMemory)
		}, "never fired: no driver was opened with the Option of these faults"},
	} {
		got := record(t, c.test)
		if c.want == "" {
			require.Empty(t, got.failures, name)
			continue
		}
		require.Len(t, got.failures, 1, name)
		require.Regexp(t, c.want, got.failures[0], name)
	}
}

// Any goroutine may set faults, meet them and stop them.
func TestFaultsFromManyGoroutines(t *testing.T) {
	faults, dev := faulty(t)
	ctx := Context(t, dev)
	var wg sync.WaitGroup
	for function, call := range map[string]func() error{
		"cuMemGetInfo":        func() error { return memInfo(ctx) },
		"cuCtxGetFlags":       func() error { return second(ctx.Flags()) },
		"cuCtxGetCacheConfig": func() error { return second(ctx.CacheConfig()) },
		"cuCtxGetLimit":       func() error { return second(ctx.Limit(cu.LimitStackSize)) },
	} {
		wg.Go(func() {
			for range 50 {
				fault := faults.Fail(function, cu.ErrOutOfMemory)
				if err := call(); !errors.Is(err, cu.ErrOutOfMemory) {
					t.Errorf("%s did not fail: %v", function, err)
				}
				fault.Stop()
				if err := call(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// Every symbol of the ABI has a plain name that a fault may have.
func TestPlainNamesAreNames(t *testing.T) {
	for _, symbol := range sys.Symbols() {
		require.True(t, (&Fault{function: symbol}).is(symbol))
		require.True(t, (&Fault{function: plain(symbol)}).is(symbol))
	}
	require.False(t, slices.ContainsFunc(sys.Symbols(), (&Fault{function: "cuMemAlloc_v3"}).is))
}
