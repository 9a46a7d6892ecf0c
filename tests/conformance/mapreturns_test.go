package conformance

import (
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

// The results that the documentation of cuMemMap names.

func TestMapReturns_SUCCESS(t *testing.T) {
	h, p := created(t, unit), reserved(t, unit)
	check(t, "whole, aligned, free", success, raw(t).CuMemMap(p, unit, 0, h, 0))
	ok(t, raw(t).CuMemUnmap(p, unit))
}

func TestMapReturns_INVALID_VALUE(t *testing.T) {
	c := raw(t)
	h, p := created(t, unit), reserved(t, 2*unit)
	check(t, "flags", invalid, c.CuMemMap(p, unit, 0, h, 1))
	check(t, "all flags", invalid, c.CuMemMap(p, unit, 0, h, ^uint64(0)))
	check(t, "a pointer that is not aligned", invalid, c.CuMemMap(p+4*KiB, unit, 0, h, 0))
	check(t, "a pointer to nothing reserved", invalid, c.CuMemMap(1<<45, unit, 0, h, 0))
	mapped(t, p, unit, h)
	check(t, "an occupied range", invalid, c.CuMemMap(p, unit, 0, h, 0))
}

func TestMapReturns_NOT_SUPPORTED(t *testing.T) {
	c := raw(t)
	h, p := created(t, 2*unit), reserved(t, 2*unit)
	check(t, "a size that is not aligned", notSupported, c.CuMemMap(p, unit+4*KiB, 0, h, 0))
	check(t, "an offset that is not aligned", notSupported, c.CuMemMap(p, 2*unit, 4*KiB, h, 0))
	check(t, "an offset", notSupported, c.CuMemMap(p, unit, unit, h, 0))
	check(t, "a part", notSupported, c.CuMemMap(p, unit, 0, h, 0))
}

// The first error found, if several things are wrong at once.
func TestMapReturns_Order(t *testing.T) {
	c := raw(t)
	h, p := created(t, 2*unit), reserved(t, 2*unit)
	check(t, "flags and a part", invalid, c.CuMemMap(p, unit, 0, h, 1))
	check(t, "a pointer that is not aligned and a part", notSupported, c.CuMemMap(p+1, unit, 0, h, 0))
	check(t, "no reservation and an offset", notSupported, c.CuMemMap(1<<45, 2*unit, unit, h, 0))
	check(t, "no reservation and flags", invalid, c.CuMemMap(1<<45, 2*unit, 0, h, 1))
}

var uninitialised = sheet("uninitialised",
	row{what: "cuMemMap before cuInit", want: sys.CUDA_ERROR_NOT_INITIALIZED, ask: func(t testing.TB) any {
		return unopened(t).CuMemMap(0, unit, 0, 0, 0)
	}},
)

func TestMapReturns_NOT_INITIALIZED(t *testing.T) { uninitialised.check(t) }

// atExit has the C library call f when the process ends, and ends it. What is
// registered before libcuda is loaded comes after libcuda's own end.
func atExit(t testing.TB, f func()) (exit func()) {
	libc, err := purego.Dlopen("libc.so.6", purego.RTLD_NOW)
	require.NoError(t, err)
	var cxaAtexit func(f, arg, dso uintptr) int32
	var cExit func(int32)
	purego.RegisterLibFunc(&cxaAtexit, libc, "__cxa_atexit")
	purego.RegisterLibFunc(&cExit, libc, "exit")
	require.Zero(t, cxaAtexit(purego.NewCallback(func(uintptr) uintptr { f(); return 0 }), 0, 0))
	return func() { cExit(0) }
}

var atTheEnd = sheet("at the end",
	row{what: "cuMemMap after libcuda's exit handler", want: sys.CUDA_ERROR_DEINITIALIZED, id: "deinitialized", soft: success, ask: func(t testing.TB) any {
		var p sys.CUdeviceptr
		var h sys.CUmemGenericAllocationHandle
		var c sys.Caller
		exit := atExit(t, func() { answer(c.CuMemMap(p, unit, 0, h, 0)) })
		c, p, h = raw(t), reserved(t, unit), created(t, unit)
		exit()
		return "exit returned"
	}},
)

func TestMapReturns_DEINITIALIZED(t *testing.T) { atTheEnd.check(t) }
