package cu_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// Invariant 3: what was lost is given back, and not before it is lost.
func TestLostContextIsReleased(t *testing.T) {
	s, drv := spied(t)
	dev := firstDevice(t, drv)
	func() {
		ctx, err := dev.PrimaryContext()
		require.NoError(t, err)
		_, err = ctx.NewStream()
		require.NoError(t, err)
	}()
	eventuallyCollected(t, func() bool { return s.count("cuDevicePrimaryCtxRelease_v2") == 1 })
	require.Equal(t, 1, s.count("cuStreamDestroy_v2"))
	require.Empty(t, cutest.TakeLeaks())
}

// FAULTS 15: memory of a lost context may be in use by a kernel.
func TestLostContextWithMemoryIsReportedAndKept(t *testing.T) {
	s, drv := spied(t)
	dev := firstDevice(t, drv)
	keep := cutest.Context(t, dev)
	ptr := func() cu.DevicePtr {
		ctx, err := dev.PrimaryContext()
		require.NoError(t, err)
		mem, err := ctx.Alloc(8 << 20)
		require.NoError(t, err)
		return mem.Ptr()
	}()
	var leaks []cu.Leak
	eventuallyCollected(t, func() bool {
		leaks = append(leaks, cutest.TakeLeaks()...)
		return len(leaks) > 0
	})
	require.Contains(t, leaks[0].String(), "a context with 8388608 bytes of memory")
	require.Contains(t, leaks[0].String(), "TestLostContextWithMemoryIsReportedAndKept")
	require.NoError(t, cu.CopyToDevice(keep, nil, ptr, []byte{1}), "the memory is still there")
	require.Zero(t, s.count("cuMemFree_v2"))

	// What nobody owns any more, this test gives back.
	require.Equal(t, sys.CUDA_SUCCESS, keep.Caller().CuMemFree_v2(sys.CUdeviceptr(ptr)))
	require.Equal(t, sys.CUDA_SUCCESS, drv.Caller().CuDevicePrimaryCtxRelease_v2(sys.CUdevice(dev.Ordinal())))
}

// A context is not collected while its raw API is in use.
func TestCallerKeepsItsContext(t *testing.T) {
	s, drv := spied(t)
	dev := firstDevice(t, drv)
	call := func() sys.Caller {
		ctx, err := dev.PrimaryContext()
		require.NoError(t, err)
		return ctx.Caller()
	}()
	for range 5 {
		runtime.GC()
		require.Equal(t, sys.CUDA_SUCCESS, call.CuCtxSynchronize())
	}
	require.Zero(t, s.count("cuDevicePrimaryCtxRelease_v2"))
	call = sys.Caller{}
	eventuallyCollected(t, func() bool { return s.count("cuDevicePrimaryCtxRelease_v2") == 1 })
}

// A context is not collected while a stream of it is in use.
func TestStreamKeepsItsContext(t *testing.T) {
	s, drv := spied(t)
	dev := firstDevice(t, drv)
	stream := func() *cu.Stream {
		ctx, err := dev.PrimaryContext()
		require.NoError(t, err)
		stream, err := ctx.NewStream()
		require.NoError(t, err)
		return stream
	}()
	for range 3 {
		collect()
		done, err := stream.Query()
		require.NoError(t, err)
		require.True(t, done)
	}
	require.Zero(t, s.count("cuDevicePrimaryCtxRelease_v2"))
	require.NoError(t, stream.Context().Close())
}
