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

func TestNoContext(t *testing.T) {
	c := initialised(t)
	onThread(t)
	for _, r := range []sys.CUresult{
		c.CuCtxGetDevice(new(sys.CUdevice)), c.CuCtxSynchronize(), c.CuMemAlloc_v2(new(sys.CUdeviceptr), 1),
		c.CuMemGetInfo_v2(new(uintptr), new(uintptr)), c.CuStreamCreate(new(sys.CUstream), 0),
		c.CuStreamSynchronize(0), c.CuEventCreate(new(sys.CUevent), 0), c.CuMemcpyDtoD_v2(0, 0, 0),
		c.CuMemsetD32_v2(0, 0, 1), c.CuCtxPopCurrent_v2(nil), c.CuCtxGetApiVersion(0, new(uint32)),
	} {
		want(t, sys.CUDA_ERROR_INVALID_CONTEXT, r)
	}
	ctx := new(sys.CUcontext)
	ok(t, c.CuCtxGetCurrent(ctx))
	require.Zero(t, *ctx)
}

func TestPrimaryContext(t *testing.T) {
	c := initialised(t)
	state := func() (active int32) {
		ok(t, c.CuDevicePrimaryCtxGetState(1, new(uint32), &active))
		return active
	}
	require.Zero(t, state())
	a, b := new(sys.CUcontext), new(sys.CUcontext)
	ok(t, c.CuDevicePrimaryCtxRetain(a, 1))
	ok(t, c.CuDevicePrimaryCtxRetain(b, 1))
	require.Equal(t, *a, *b)
	dev, id := new(sys.CUdevice), new(uint64)
	ok(t, c.With(*a).CuCtxGetDevice(dev))
	require.EqualValues(t, 1, *dev)
	ok(t, c.CuCtxGetDevice_v2(dev, *a))
	ok(t, c.CuCtxGetId(*a, id))
	ok(t, c.CuDevicePrimaryCtxRelease_v2(1))
	require.EqualValues(t, 1, state())
	ok(t, c.With(*a).CuCtxSynchronize())
	ok(t, c.CuDevicePrimaryCtxRelease_v2(1))
	require.Zero(t, state())
	want(t, sys.CUDA_ERROR_INVALID_CONTEXT, c.CuDevicePrimaryCtxRelease_v2(1))
}

// Binding a destroyed context succeeds; calls in it fail, VMM calls do not.
func TestDestroyedContext(t *testing.T) { // D20a
	c := initialised(t)
	onThread(t)
	ctx := new(sys.CUcontext)
	ok(t, c.CuDevicePrimaryCtxRetain(ctx, 0))
	stream, event := new(sys.CUstream), new(sys.CUevent)
	ok(t, c.With(*ctx).CuStreamCreate(stream, 0))
	ok(t, c.With(*ctx).CuEventCreate(event, 0))
	ok(t, c.CuDevicePrimaryCtxRelease_v2(0))
	ok(t, c.CuCtxSetCurrent(*ctx))
	got := new(sys.CUcontext)
	ok(t, c.CuCtxGetCurrent(got))
	require.Equal(t, *ctx, *got)
	for _, r := range []sys.CUresult{
		c.CuCtxSynchronize(), c.CuMemAlloc_v2(new(sys.CUdeviceptr), 1), c.CuStreamSynchronize(0), c.CuCtxGetApiVersion(0, new(uint32)),
		c.CuStreamDestroy_v2(*stream), c.CuEventDestroy_v2(*event),
	} {
		want(t, sys.CUDA_ERROR_CONTEXT_IS_DESTROYED, r)
	}
	buffer(t, 2*MiB, 0)
	ok(t, c.CuCtxGetDevice(new(sys.CUdevice))) // what it was can be asked
	ok(t, c.CuCtxGetFlags(new(uint32)))
	want(t, sys.CUDA_ERROR_INVALID_CONTEXT, c.CuCtxGetApiVersion(*ctx, new(uint32)))

	live := inContext(t, 0)
	require.Equal(t, *ctx, live.Context(), "a device's primary context keeps its handle")
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, live.CuStreamDestroy_v2(*stream))
	want(t, sys.CUDA_ERROR_CONTEXT_IS_DESTROYED, live.CuEventDestroy_v2(*event))
	misused(t, 2) // the real driver crashes
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

func TestReset(t *testing.T) {
	c := inContext(t, 0)
	ok(t, c.CuMemAlloc_v2(new(sys.CUdeviceptr), MiB))
	ok(t, c.CuDevicePrimaryCtxReset_v2(0))
	want(t, sys.CUDA_ERROR_CONTEXT_IS_DESTROYED, c.CuCtxSynchronize())
	fresh := inContext(t, 0)
	ok(t, fresh.CuCtxSynchronize())
}

func TestContextStack(t *testing.T) {
	a, b := inContext(t, 0).Context(), inContext(t, 1).Context()
	c := caller
	onThread(t)
	ok(t, c.CuCtxPushCurrent_v2(a))
	ok(t, c.CuCtxPushCurrent_v2(b))
	dev, got := new(sys.CUdevice), new(sys.CUcontext)
	ok(t, c.CuCtxGetDevice(dev))
	require.EqualValues(t, 1, *dev)
	ok(t, c.CuCtxPopCurrent_v2(got))
	require.Equal(t, b, *got)
	ok(t, c.CuCtxSetCurrent(b)) // replaces the top
	ok(t, c.CuCtxPopCurrent_v2(got))
	require.Equal(t, b, *got)
	want(t, sys.CUDA_ERROR_INVALID_CONTEXT, c.CuCtxPopCurrent_v2(got))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuCtxPushCurrent_v2(0))
	want(t, sys.CUDA_ERROR_INVALID_CONTEXT, c.CuCtxPushCurrent_v2(4711))
	want(t, sys.CUDA_ERROR_INVALID_CONTEXT, c.CuCtxSetCurrent(4711))
	misused(t, 2)
}

// A handle says which context a call is in; no thread need have it current.
func TestHandlesNeedNoContext(t *testing.T) {
	in := inContext(t, 0)
	s, e := new(sys.CUstream), new(sys.CUevent)
	ok(t, in.CuStreamCreate(s, 0))
	ok(t, in.CuEventCreate(e, 0))
	onThread(t)
	ok(t, caller.CuEventRecord(*e, *s))
	ok(t, caller.CuStreamWaitEvent(*s, *e, 0))
	ok(t, caller.CuStreamSynchronize(*s))
	ok(t, caller.CuEventDestroy_v2(*e))
	ok(t, caller.CuStreamDestroy_v2(*s))
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
