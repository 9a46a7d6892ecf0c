package cu_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// A context in which asynchronous work failed says so at once, names the call
// that noticed it, and says so for ever: also through another Context that is
// the same one to the driver. Nothing more reaches the driver.
func TestLostContextSaysSoForEver(t *testing.T) {
	s, _, dev := spied(t)
	ctx, twin := cutest.Context(t, dev), cutest.Context(t, dev)
	s.Fail("cuCtxSynchronize", cu.ErrIllegalAddress)
	err := ctx.Synchronize(t.Context())
	require.ErrorIs(t, err, cu.ErrIllegalAddress)
	require.ErrorIs(t, err, cu.ErrContextLost)
	const cause = "CUDA_ERROR_ILLEGAL_ADDRESS (700), noticed by cuCtxSynchronize: the context is lost"
	first, below, _ := strings.Cut(err.Error(), "\n")
	require.Equal(t, cause, first)
	require.Contains(t, below, "; work queued earlier has failed, ")

	before := s.calls()
	for _, c := range []*cu.Context{ctx, twin, ctx} {
		_, _, err = c.MemInfo()
		var lost *cu.ContextLostError
		require.ErrorAs(t, err, &lost)
		require.Equal(t, "cuMemGetInfo_v2", lost.Op)
		require.Equal(t, "cuCtxSynchronize", lost.Cause.Op)
		require.ErrorIs(t, err, cu.ErrContextLost)
		require.ErrorIs(t, err, cu.ErrIllegalAddress)
		require.EqualError(t, err, cause+", so cuMemGetInfo_v2 was not called\n"+below)
		require.ErrorIs(t, errOf(c.NewStream()), cu.ErrContextLost)
	}
	require.Equal(t, before, s.calls())
}

// A lost device stays lost: the driver makes no new context, and contexts that are left close
// without a call that it would refuse, or crash in.
func TestLossOutlivesTheContexts(t *testing.T) {
	s, _, dev := spied(t)
	ctx := ok(dev.PrimaryContext())(t)
	apart := ok(dev.NewContext(cu.SchedAuto))(t)
	stream := ok(apart.NewStream())(t)
	mem := ok(apart.Alloc(4096))(t)
	s.Fail("cuCtxSynchronize", cu.ErrLaunchFailed)
	require.ErrorIs(t, ctx.Synchronize(t.Context()), cu.ErrContextLost)

	_, _, err := apart.MemInfo()
	require.ErrorIs(t, err, cu.ErrContextLost, "contexts are lost together")
	before := s.calls()
	require.NoError(t, stream.Close())
	require.NoError(t, mem.Close())
	require.Equal(t, before, s.calls(), "they go with the context")
	require.ErrorIs(t, errOf(stream.Query()), cu.ErrClosed)
	require.NoError(t, ctx.Close())
	require.NoError(t, apart.Close())
	require.Equal(t, []string{"cuDevicePrimaryCtxRelease_v2", "cuCtxDestroy_v2"},
		s.sequence("cuDevicePrimaryCtxRelease_v2", "cuCtxDestroy_v2"))

	before = s.calls()
	for op, get := range map[string]func() (*cu.Context, error){
		"cuDevicePrimaryCtxRetain": dev.PrimaryContext,
		"cuCtxCreate_v2":           func() (*cu.Context, error) { return dev.NewContext(0) },
	} {
		_, err = get()
		require.ErrorIs(t, err, cu.ErrContextLost)
		require.ErrorContains(t, err, op+" was not called")
	}
	require.Equal(t, before, s.calls())
}

// An ordinary refusal loses nothing.
func TestRefusalLosesNoContext(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	_, err := ctx.Alloc(1 << 60)
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
	require.NotErrorIs(t, err, cu.ErrContextLost)
	_ = freeMemory(t, ctx)
}

// The cause comes first, and fits a line with the calls, whatever they are.
func TestLossFitsALine(t *testing.T) {
	symbols := sys.Symbols()
	longest := slices.MaxFunc(symbols, func(a, b string) int { return len(a) - len(b) })
	fatal := 0
	for r := cu.Result(1); r < 1000; r++ {
		if !r.Fatal() {
			continue
		}
		fatal++
		for _, op := range symbols {
			for _, bind := range []bool{false, true} {
				cause := &cu.Error{Op: op, Result: r, Text: "the driver's own words", Bind: bind}
				for _, err := range []error{cause, &cu.ContextLostError{Op: longest, Cause: cause}} {
					first, below, two := strings.Cut(err.Error(), "\n")
					require.True(t, two)
					require.LessOrEqual(t, len(first), 200, first)
					require.True(t, strings.HasPrefix(first, fmt.Sprintf("%s (%d), noticed by cu", r.Error(), r)), first)
					require.True(t, strings.HasPrefix(below, "the driver's own words; "), below)
					require.Contains(t, below, "restart the process")
				}
			}
		}
	}
	require.Greater(t, fatal, 10)
}

func TestFatalResults(t *testing.T) {
	for _, r := range []cu.Result{cu.ErrIllegalAddress, cu.ErrLaunchFailed, cu.ErrAssert, cu.ErrMisalignedAddress, cu.ErrECCUncorrectable, cu.ErrMPSClientTerminated, cu.ErrExternalDevice} {
		require.True(t, r.Fatal(), r.Error())
	}
	for _, r := range []cu.Result{cu.ErrInvalidValue, cu.ErrOutOfMemory, cu.ErrNotSupported, cu.ErrUnknown, cu.ErrNotReady} {
		require.False(t, r.Fatal(), r.Error())
	}
}
