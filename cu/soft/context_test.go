package soft

import (
	"runtime"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

// onThread keeps the test on one thread, without a context there before and
// after.
func onThread(t testing.TB) {
	runtime.LockOSThread()
	ok(t, caller.CuCtxSetCurrent(0))
	t.Cleanup(func() {
		ok(t, caller.CuCtxSetCurrent(0))
		runtime.UnlockOSThread()
	})
}

// The context goes with what it owns; nothing need be freed before.
func TestContextOwns(t *testing.T) {
	c := initialised(t)
	ctx := new(sys.CUcontext)
	ok(t, c.CuDevicePrimaryCtxRetain(ctx, 0))
	b := c.With(*ctx)
	ok(t, b.CuMemAlloc_v2(new(sys.CUdeviceptr), MiB))
	hostMemoryOf(t, b, MiB)
	ok(t, b.CuStreamCreate(new(sys.CUstream), 0))
	ok(t, b.CuEventCreate(new(sys.CUevent), 0))
	ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
	require.Empty(t, driver.leftovers())
}

// The last release lets no more work in and waits for what there is.
func TestReleaseWaits(t *testing.T) {
	c := initialised(t)
	ctx, q := new(sys.CUcontext), new(sys.CUdeviceptr)
	ok(t, c.CuDevicePrimaryCtxRetain(ctx, 0))
	b := c.With(*ctx)
	ok(t, b.CuMemAlloc_v2(q, 1))
	s := newStreamUnchecked(t, b)
	open := block(t, b, s)
	ok(t, b.CuMemsetD8Async(*q, 1, 1, s))
	released := make(chan sys.CUresult)
	go func() { released <- c.CuDevicePrimaryCtxRelease_v2(0) }()
	for b.CuMemsetD8Async(*q, 2, 1, s) == sys.CUDA_SUCCESS {
		runtime.Gosched()
	}
	want(t, sys.CUDA_ERROR_CONTEXT_IS_DESTROYED, b.CuMemsetD8Async(*q, 2, 1, s))
	require.NotEmpty(t, driver.leftovers(), "still waiting")
	fresh := inContext(t, 0)
	ok(t, fresh.CuCtxSynchronize())
	open()
	ok(t, <-released)
}

// The current context is the thread's own.
func TestCurrentIsPerThread(t *testing.T) {
	ctx := inContext(t, 0).Context()
	onThread(t)
	ok(t, caller.CuCtxSetCurrent(ctx))
	got := make(chan sys.CUcontext)
	go func() {
		runtime.LockOSThread() // and so on another thread than the test
		defer runtime.UnlockOSThread()
		caller.CuCtxSetCurrent(0)
		cur := new(sys.CUcontext)
		caller.CuCtxGetCurrent(cur)
		got <- *cur
	}()
	require.Zero(t, <-got)
	cur := new(sys.CUcontext)
	ok(t, caller.CuCtxGetCurrent(cur))
	require.Equal(t, ctx, *cur)
}
