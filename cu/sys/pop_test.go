package sys

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A context that was created is popped in the same crossing, on the thread
// that pushed it, if and only if there is one.
func TestCreatedContextIsPoppedInTheSameCrossing(t *testing.T) {
	var log []string
	var created, popped int
	result := CUDA_SUCCESS
	symbols := map[string]uintptr{
		bindSymbol: wordFunc(t, 1, func([]uintptr) uintptr { log = append(log, "bind"); return garbage }),
		"cuCtxCreate_v2": wordFunc(t, 3, func([]uintptr) uintptr {
			log, created = append(log, "create"), syscall.Gettid()
			return garbage | uintptr(result)
		}),
		popSymbol: wordFunc(t, 1, func(w []uintptr) uintptr {
			log, popped = append(log, "pop"), syscall.Gettid()
			require.NotZero(t, w[0])
			return garbage
		}),
	}
	c := library(symbols).Caller()
	ctx := new(CUcontext)
	require.Equal(t, CUDA_SUCCESS, c.CuCtxCreate_v2(ctx, 0, 0))
	require.Equal(t, []string{"create", "pop"}, log)
	require.Equal(t, created, popped, "threads")

	log = nil
	require.Equal(t, CUDA_SUCCESS, c.With(7).CuCtxCreate_v2(ctx, 0, 0))
	require.Equal(t, []string{"bind", "create", "pop"}, log)

	log, result = nil, CUDA_ERROR_OUT_OF_MEMORY
	require.Equal(t, result, c.CuCtxCreate_v2(ctx, 0, 0))
	require.Equal(t, []string{"create"}, log, "nothing was pushed")

	// No other call pops.
	log, result = nil, CUDA_SUCCESS
	require.Equal(t, CUDA_SUCCESS, c.CuCtxSetCurrent(0))
	require.Equal(t, []string{"bind"}, log)

	// A context that could not be popped is not pushed.
	log = nil
	delete(symbols, popSymbol)
	require.Equal(t, SymbolMissing, library(symbols).Caller().CuCtxCreate_v2(ctx, 0, 0))
	require.Empty(t, log)
}
