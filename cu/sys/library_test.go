package sys

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMissingSymbol(t *testing.T) {
	l := library(map[string]uintptr{
		"cuEventElapsedTime_v2": wordFunc(t, 3, func([]uintptr) uintptr { return 0 }),
		bindSymbol:              wordFunc(t, 1, func([]uintptr) uintptr { return 0 }),
	})
	c := l.Caller()
	for range 2 {
		require.Equal(t, SymbolMissing, c.CuMemCreate(nil, 1, nil, 0))
		require.Equal(t, SymbolMissing, c.With(1).CuMemCreate(nil, 1, nil, 0), "the bind worked")
		require.Equal(t, SymbolMissing, c.CuEventElapsedTime(nil, 1, 2), "the older ABI is another function")
		require.Equal(t, SymbolMissing, c.CuIpcOpenEventHandle(nil, CUipcEventHandle{}))
		require.Equal(t, CUDA_SUCCESS, c.CuEventElapsedTime_v2(nil, 1, 2))
	}
	_, err := l.Lookup("cuMemCreate")
	require.ErrorContains(t, err, "cuMemCreate")
	require.False(t, l.Has("cuMemCreate"))
	require.True(t, l.Has("cuEventElapsedTime_v2"))
}

func TestSymbolResolvesToZero(t *testing.T) {
	l := NewLibrary(func(string) (uintptr, error) { return 0, nil })
	_, err := l.Lookup(someSymbol)
	require.EqualError(t, err, "symbol cuInit resolved to the address 0")
	require.False(t, l.Has(someSymbol))
	require.Equal(t, SymbolMissing, l.Caller().CuInit(0))
}

func TestSymbolsResolveOnFirstUseAndOnce(t *testing.T) {
	asked := map[string]int{}
	fn := wordFunc(t, 1, func([]uintptr) uintptr { return 0 })
	l := NewLibrary(func(symbol string) (uintptr, error) {
		asked[symbol]++
		if symbol == "cuStreamDestroy" {
			return 0, errors.New("an old driver")
		}
		return fn, nil
	})
	require.Empty(t, asked)
	for range 3 {
		require.Zero(t, l.Caller().With(1).CuStreamQuery(0))
		require.Zero(t, l.Caller().CuStreamDestroy_v2(0))
		require.Equal(t, SymbolMissing, l.Caller().CuStreamDestroy(0))
	}
	require.Equal(t, map[string]int{
		bindSymbol: 1, "cuStreamQuery": 1, "cuStreamDestroy_v2": 1, "cuStreamDestroy": 1,
	}, asked)
}

func TestLookupAsksForAnySymbol(t *testing.T) {
	l := library(map[string]uintptr{"cuNotYetInvented": 42})
	addr, err := l.Lookup("cuNotYetInvented")
	require.NoError(t, err)
	require.EqualValues(t, 42, addr)
}

func TestTwoDriversInOneProcess(t *testing.T) {
	driver := func(r uintptr) Caller {
		return library(map[string]uintptr{someSymbol: wordFunc(t, 1, func([]uintptr) uintptr { return r })}).Caller()
	}
	one, two := driver(1), driver(2)
	require.Equal(t, CUresult(1), one.CuInit(0))
	require.Equal(t, CUresult(2), two.CuInit(0))
	require.NotSame(t, one.Library(), two.Library())
}

func TestManyGoroutinesResolveAtOnce(t *testing.T) {
	fn := wordFunc(t, 1, func(w []uintptr) uintptr { return w[0] })
	for range 20 {
		l := NewLibrary(func(string) (uintptr, error) { return fn, nil })
		var wrong atomic.Int64
		inParallel(t, goroutines, func(i int) {
			if l.Caller().CuStreamQuery(CUstream(i)) != CUresult(i) {
				wrong.Add(1)
			}
		})
		require.Zero(t, wrong.Load())
	}
}

func TestVersion(t *testing.T) {
	require.Equal(t, "12.3", Version(12030))
	require.Equal(t, "11.4", Version(11040))
	require.Equal(t, "9.0", Version(9000))
	require.Equal(t, "13.0", Version(CUDA_VERSION))
}

func TestGoStringAndCString(t *testing.T) {
	for _, s := range []string{"", "x", "libcuda.so.1", "µs"} {
		require.Equal(t, s, GoString(CString(s), 64))
	}
	require.Equal(t, "lib", GoString(CString("libcuda"), 3), "the limit comes first")
	require.Equal(t, "a", GoString(CString("a\x00b"), 64), "C ends at the zero")
	require.Empty(t, GoString(CString("abc"), 0))
	require.Empty(t, GoString(nil, 64))
}
