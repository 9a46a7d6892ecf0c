package soft

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

// newContext creates a context, destroyed when the test ends.
func newContext(t testing.TB, dev sys.CUdevice) sys.Caller {
	t.Helper()
	c := initialised(t)
	var ctx sys.CUcontext
	ok(t, c.CuCtxCreate_v2(&ctx, 0, dev))
	t.Cleanup(func() { ok(t, c.CuCtxDestroy_v2(ctx)) })
	return c.With(ctx)
}

// There are no companions of graphics contexts.
func TestNoGraphicsContext(t *testing.T) {
	want(t, sys.CUDA_ERROR_NOT_SUPPORTED,
		initialised(t).CuCtxCreate_v4(new(sys.CUcontext), &sys.CUctxCreateParams{CigParams: new(sys.CUctxCigParam)}, 0, 0))
}

// Contexts are lost together, for ever, those of other devices too.
func TestLossIsOfTheProcess(t *testing.T) {
	c, created, other := inContext(t, 0), newContext(t, 0), inContext(t, 1)
	p, free := looseBuffer(t, 2*MiB)
	s := newStreamUnchecked(t, c)
	open := block(t, c, s)
	ok(t, c.CuMemsetD8Async(p, 1, 10, s))
	free()
	open()
	const lost = sys.CUDA_ERROR_ILLEGAL_ADDRESS
	want(t, lost, c.CuStreamSynchronize(s))
	want(t, lost, created.CuCtxSynchronize())
	want(t, lost, created.CuMemAlloc_v2(new(sys.CUdeviceptr), 10))
	want(t, lost, other.CuCtxSynchronize())

	ctx := new(sys.CUcontext)
	want(t, lost, c.CuCtxCreate_v2(ctx, 0, 0))
	want(t, lost, c.CuCtxCreate_v2(ctx, 0, 1))
	ok(t, c.CuDevicePrimaryCtxRetain(ctx, 0)) // it is there still
	ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
	ok(t, c.CuDevicePrimaryCtxReset_v2(0))
	want(t, lost, c.CuDevicePrimaryCtxRetain(ctx, 0))
	buffer(t, 2*MiB, 0) // D20a
}

// A lost context still answers questions about itself, as on hardware.
func TestLostContextTellsWhatItIs(t *testing.T) {
	c := inContext(t, 0)
	driver.mu.Lock()
	driver.contexts[c.Context()].fail(sys.CUDA_ERROR_LAUNCH_FAILED)
	driver.mu.Unlock()
	n32, n64 := new(uint32), new(uint64)
	ok(t, c.CuCtxGetFlags(n32))
	ok(t, c.CuCtxSetFlags(0))
	ok(t, c.CuCtxGetDevice(new(sys.CUdevice)))
	ok(t, c.CuCtxGetDevice_v2(new(sys.CUdevice), c.Context()))
	ok(t, c.CuCtxGetId(c.Context(), n64))
	want(t, sys.CUDA_ERROR_LAUNCH_FAILED, c.CuCtxGetId(0, n64))
	ok(t, c.CuCtxGetApiVersion(c.Context(), n32))
	for _, r := range []sys.CUresult{
		c.CuCtxGetLimit(new(uintptr), 0), c.CuCtxSetLimit(0, 2048), c.CuCtxGetCacheConfig(new(sys.CUfunc_cache)),
		c.CuCtxSetCacheConfig(1), c.CuCtxGetSharedMemConfig(new(sys.CUsharedconfig)), c.CuCtxSetSharedMemConfig(0),
		c.CuCtxGetStreamPriorityRange(new(int32), new(int32)), c.CuCtxResetPersistingL2Cache(), c.CuCtxSynchronize_v2(c.Context()),
		c.CuMemGetInfo_v2(new(uintptr), new(uintptr)), c.CuStreamGetFlags(0, n32), c.CuEventCreate(new(sys.CUevent), 0),
		c.CuCtxEnablePeerAccess(c.Context(), 0), c.CuStreamGetCtx(0, new(sys.CUcontext)),
	} {
		want(t, sys.CUDA_ERROR_LAUNCH_FAILED, r)
	}
}
