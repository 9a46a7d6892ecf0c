package sys

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// hooked is a driver with cuMemCreate, which succeeds, and a count of its
// calls.
func hooked(t *testing.T) (*Library, *int) {
	calls := new(int)
	return library(map[string]uintptr{
		"cuMemCreate": wordFunc(t, 4, func([]uintptr) uintptr { *calls++; return 0 }),
		bindSymbol:    wordFunc(t, 1, func([]uintptr) uintptr { return 0 }),
	}), calls
}

func TestHookLooks(t *testing.T) {
	l, calls := hooked(t)
	var seen []string
	l.SetHook(func(call Call, next func() CUresult) CUresult {
		require.Equal(t, "cuMemCreate", call.Symbol())
		require.Equal(t, CUcontext(0xc7), call.Context())
		require.Equal(t, uintptr(4096), call.Arg(1))
		require.Equal(t, uintptr(9), call.Arg(3))
		seen = append(seen, "before")
		require.Equal(t, len(seen)/2, *calls)
		r := next()
		seen = append(seen, "after")
		return r
	})
	for range 2 {
		require.Zero(t, l.Caller().With(0xc7).CuMemCreate(nil, 4096, nil, 9))
	}
	require.Equal(t, []string{"before", "after", "before", "after"}, seen)

	l.SetHook(nil)
	require.Zero(t, l.Caller().CuMemCreate(nil, 4096, nil, 9))
	require.Len(t, seen, 4, "a hook that was taken away")
	require.Equal(t, 3, *calls)
}

// failAt is fault injection: the nth call fails and is not made.
func failAt(n int, r CUresult) Hook {
	return func(_ Call, next func() CUresult) CUresult {
		if n--; n == 0 {
			return r
		}
		return next()
	}
}

func TestHookAnswersInTheDriversStead(t *testing.T) {
	l, calls := hooked(t)
	l.SetHook(failAt(2, CUDA_ERROR_OUT_OF_MEMORY))
	var got []CUresult
	for range 3 {
		got = append(got, l.Caller().CuMemCreate(nil, 1, nil, 0))
	}
	require.Equal(t, []CUresult{CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS}, got)
	require.Equal(t, 2, *calls)
}

func TestHookAnswersForAMissingSymbol(t *testing.T) {
	l := library(nil)
	l.SetHook(func(Call, func() CUresult) CUresult { return CUDA_SUCCESS })
	require.Equal(t, CUDA_SUCCESS, l.Caller().With(1).CuStreamQuery(0))
}

func TestHookChangesTheAnswer(t *testing.T) {
	l, calls := hooked(t)
	l.SetHook(func(_ Call, next func() CUresult) CUresult {
		if r := next(); r != CUDA_SUCCESS {
			return r
		}
		return CUDA_ERROR_NOT_READY
	})
	require.Equal(t, CUDA_ERROR_NOT_READY, l.Caller().CuMemCreate(nil, 1, nil, 0))
	require.Equal(t, 1, *calls)
	require.Equal(t, SymbolMissing, l.Caller().CuMemRelease(0))
}

func TestHookSeesAFailedBind(t *testing.T) {
	l := library(map[string]uintptr{
		someSymbol: wordFunc(t, 1, func([]uintptr) uintptr { return 0 }),
		bindSymbol: wordFunc(t, 1, func([]uintptr) uintptr { return uintptr(CUDA_ERROR_DEINITIALIZED) }),
	})
	l.SetHook(func(_ Call, next func() CUresult) CUresult {
		r, bindFailed := next().BindFailed()
		require.True(t, bindFailed)
		return r
	})
	require.Equal(t, CUDA_ERROR_DEINITIALIZED, l.Caller().With(1).CuInit(0))
}

// The first of several hooks is what the caller meets, the last is closest to
// the driver.
func TestNestedHooks(t *testing.T) {
	l, calls := hooked(t)
	var seen []string
	hook := func(name string, answer bool) Hook {
		return func(_ Call, next func() CUresult) CUresult {
			seen = append(seen, name)
			if answer {
				return CUDA_ERROR_UNKNOWN
			}
			defer func() { seen = append(seen, "end "+name) }()
			return next()
		}
	}
	l.SetHook(Nest(hook("a", false), hook("b", false), hook("c", false)))
	require.Zero(t, l.Caller().CuMemCreate(nil, 1, nil, 0))
	require.Equal(t, []string{"a", "b", "c", "end c", "end b", "end a"}, seen)
	require.Equal(t, 1, *calls)

	seen = nil
	l.SetHook(Nest(hook("a", false), hook("b", true), hook("c", false)))
	require.Equal(t, CUDA_ERROR_UNKNOWN, l.Caller().CuMemCreate(nil, 1, nil, 0))
	require.Equal(t, []string{"a", "b", "end a"}, seen)
	require.Equal(t, 1, *calls)
}

func TestNestOfNoHooksIsNone(t *testing.T) {
	l, calls := hooked(t)
	l.SetHook(Nest())
	require.Zero(t, l.Caller().CuMemCreate(nil, 1, nil, 0))
	require.Equal(t, 1, *calls)
}

// A hook sees what the driver has stored.
func TestHookSeesWhatTheDriverStored(t *testing.T) {
	l := library(map[string]uintptr{
		"cuMemCreate": wordFunc(t, 4, func(args []uintptr) uintptr { *at[uintptr](args[0]) = 0x7bcdef0123456789; return 0 }),
	})
	var out []uintptr
	l.SetHook(func(call Call, next func() CUresult) CUresult {
		r := next()
		out = append(out, call.Out(0), call.Out(2))
		return r
	})
	h := new(CUmemGenericAllocationHandle)
	require.Zero(t, l.Caller().CuMemCreate(h, 1, nil, 0))
	require.EqualValues(t, 0x7bcdef0123456789, *h)
	require.Equal(t, []uintptr{0x7bcdef0123456789, 0}, out)
}
