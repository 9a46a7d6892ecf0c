package sys

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// someFunction stands for a driver function where only the crossing matters.
const (
	someFunction = fnCuInit
	someSymbol   = "cuInit"
	bindSymbol   = "cuCtxSetCurrent"
)

// distinct is a full 64-bit word that no other position has.
func distinct(i int) uintptr { return uintptr(0xa1b2c3d400000000 + 0x01010101*uint64(i+1)) }

// distinctWords are n of them, with room behind as call wants it.
func distinctWords(n int) []uintptr {
	w := make([]uintptr, n, max(n, len(words{})))
	for i := range w {
		w[i] = distinct(i)
	}
	return w
}

func TestEveryWordArrivesInItsPlace(t *testing.T) {
	for n := range maxArgs + 1 {
		for _, ctx := range []CUcontext{0, 0xc0ffee12345678} {
			t.Run(fmt.Sprintf("%d words, context %#x", n, ctx), func(t *testing.T) {
				var got, bound []uintptr
				c := library(map[string]uintptr{
					someSymbol: wordFunc(t, n, func(w []uintptr) uintptr { got = w; return 7 }),
					bindSymbol: wordFunc(t, 1, func(w []uintptr) uintptr { bound = w; return 0 }),
				}).Caller().With(ctx)

				args := distinctWords(n)
				require.Equal(t, CUresult(7), c.call(someFunction, args))
				require.Equal(t, args, got)
				if ctx == 0 {
					require.Nil(t, bound)
				} else {
					require.Equal(t, []uintptr{uintptr(ctx)}, bound)
				}
			})
		}
	}
}

// snprintf was compiled by a C compiler: it reads the words as C does, and
// keeps vectors on its stack, which must be aligned for that.
func TestLibcReadsTheWords(t *testing.T) {
	c := libcLibrary(t, map[string]string{someSymbol: "snprintf"}).Caller()
	for n := 3; n <= maxArgs; n++ {
		t.Run(fmt.Sprintf("%d words", n), func(t *testing.T) {
			format, want := "-", "-"
			args, out := distinctWords(n), make([]byte, 1024)
			for i := 3; i < n; i++ {
				format += " %lx"
				want += fmt.Sprintf(" %x", distinct(i))
			}
			cformat := CString(format)
			args[0], args[1], args[2] = address(unsafe.Pointer(&out[0])), uintptr(len(out)), address(unsafe.Pointer(cformat))
			require.Equal(t, CUresult(len(want)), c.call(someFunction, args))
			require.Equal(t, want, GoString(&out[0], len(out)))
			runtime.KeepAlive(cformat)
		})
	}
}

// getcontext stores its caller's registers. Both ABIs want the stack pointer
// of a caller at a multiple of 16; arm64 hardware insists, qemu does not.
func TestTheStackIsAligned(t *testing.T) {
	sp := map[string]int{"amd64": 160, "arm64": 432}[runtime.GOARCH] // offset in ucontext_t
	c := libcLibrary(t, map[string]string{someSymbol: "getcontext"}).Caller()
	for n := 1; n <= maxArgs; n++ {
		ucontext := make([]uintptr, 8192/8)
		args := distinctWords(n)
		args[0] = address(unsafe.Pointer(&ucontext[0]))
		require.Zero(t, c.call(someFunction, args))
		require.NotZero(t, ucontext[sp/8])
		require.Zero(t, ucontext[sp/8]%16, "%d words", n)
	}
}

// The crossing called by the crossing, to set the context and as the driver's
// function: the outer one keeps what it needs then in registers that C
// functions must preserve, so the inner one must preserve them too, whatever it
// saves and is told.
func TestCrossingPreservesTheCallersRegisters(t *testing.T) {
	bound, popped := 0, 0
	pop := wordFunc(t, 1, func(w []uintptr) uintptr { popped++; store(w[0], ^uintptr(0)); return 0 })
	c := library(map[string]uintptr{bindSymbol: crossingPC, someSymbol: crossingPC, popSymbol: pop}).Caller()
	for n := range maxArgs + 1 {
		var got [][]uintptr
		args := distinctWords(n)
		inner := &frame{
			fn:   wordFunc(t, n, func(w []uintptr) uintptr { got = append(got, w); return 0 }),
			bind: wordFunc(t, 1, func([]uintptr) uintptr { bound++; return 0 }), after: pop,
			word: inRegisters(args), stack: onStack(args),
		}
		outer := words{address(unsafe.Pointer(inner))}
		require.Zero(t, c.With(CUcontext(outer[0])).callAndPop(someFunction, outer[:1]))
		require.Equal(t, [][]uintptr{args, args}, got)
		require.Equal(t, 2*(n+1), bound)
		require.Equal(t, 3*(n+1), popped)
		runtime.KeepAlive(inner)
	}
}

func TestOnlyTheLowHalfOfTheResultCounts(t *testing.T) {
	for _, r := range []CUresult{CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNKNOWN} {
		t.Run(r.String(), func(t *testing.T) {
			c := library(map[string]uintptr{
				someSymbol: wordFunc(t, 1, func([]uintptr) uintptr { return garbage | uintptr(r) }),
				bindSymbol: wordFunc(t, 1, func([]uintptr) uintptr { return garbage }),
			}).Caller()
			require.Equal(t, r, c.CuInit(0))
			require.Equal(t, r, c.With(1).CuInit(0), "garbage above a bind that succeeded")
		})
	}
}

func TestFailedBindIsToldFromFailedCall(t *testing.T) {
	const failure = CUDA_ERROR_INVALID_CONTEXT
	tests := map[string]struct {
		bind, call CUresult
		calls      int
		result     CUresult
		bindFailed bool
	}{
		"both work":           {0, 0, 1, 0, false},
		"the call fails":      {0, failure, 1, failure, false},
		"the bind fails":      {failure, 0, 0, failure, true},
		"the bind fails too":  {failure, failure, 0, failure, true},
		"the bind, otherwise": {CUDA_ERROR_DEINITIALIZED, failure, 0, CUDA_ERROR_DEINITIALIZED, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			calls := 0
			c := library(map[string]uintptr{
				bindSymbol: wordFunc(t, 1, func([]uintptr) uintptr { return garbage | uintptr(tt.bind) }),
				someSymbol: wordFunc(t, 1, func([]uintptr) uintptr { calls++; return uintptr(tt.call) }),
			}).Caller()

			r, bindFailed := c.With(1).CuInit(0).BindFailed()
			require.Equal(t, tt.result, r)
			require.Equal(t, tt.bindFailed, bindFailed)
			require.Equal(t, tt.calls, calls)
			require.Equal(t, tt.call, c.CuInit(0), "a failed bind left something behind")
		})
	}
}

func TestBindSymbolMissing(t *testing.T) {
	calls := 0
	c := library(map[string]uintptr{
		someSymbol: wordFunc(t, 1, func([]uintptr) uintptr { calls++; return 0 }),
	}).Caller()

	r, bindFailed := c.With(1).CuInit(0).BindFailed()
	require.Equal(t, SymbolMissing, r)
	require.True(t, bindFailed)
	require.Zero(t, calls)

	r, bindFailed = c.CuInit(0).BindFailed()
	require.Equal(t, CUDA_SUCCESS, r)
	require.False(t, bindFailed)
	require.Equal(t, 1, calls)
}

func TestCallInsideACall(t *testing.T) {
	var c Caller
	var inner, outer []uintptr
	c = library(map[string]uintptr{
		"cuMemMap": wordFunc(t, 5, func(w []uintptr) uintptr {
			outer = w
			var version int32
			return uintptr(c.CuDriverGetVersion(&version)) + uintptr(version)
		}),
		"cuDriverGetVersion": wordFunc(t, 1, func(w []uintptr) uintptr {
			inner = w
			store[int32](w[0], 40)
			return 2
		}),
	}).Caller()

	require.Equal(t, CUresult(42), c.CuMemMap(1, 2, 3, 4, 5))
	require.Equal(t, []uintptr{1, 2, 3, 4, 5}, outer)
	require.Len(t, inner, 1)
}

func TestZeroCaller(t *testing.T) {
	var zero Caller
	var event CUevent
	require.Equal(t, CUDA_ERROR_NOT_INITIALIZED, zero.CuInit(0))
	require.Equal(t, CUDA_ERROR_NOT_INITIALIZED, zero.With(1).CuStreamQuery(2))
	require.Equal(t, CUDA_ERROR_NOT_INITIALIZED, zero.CuIpcOpenEventHandle(&event, CUipcEventHandle{}))
	require.Nil(t, zero.Library())
	require.Zero(t, zero.Context())
	require.Equal(t, CUcontext(5), zero.With(5).Context())
}

// store writes a value where a C function was told to.
func store[T any](addr uintptr, value T) { *at[T](addr) = value }

// at is the memory at an address that a C function was given.
func at[T any](addr uintptr) *T { return *(**T)(unsafe.Pointer(&addr)) }
