package cu_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// A copy that waits keeps its slice, which the device may be at until the wait
// is over, from the garbage collector.
func TestWaitingCopiesKeepTheirSlices(t *testing.T) {
	collected, last := make(chan int, 10), 0
	slice := func() []byte {
		b := new([4096]byte)
		last++
		runtime.AddCleanup(b, func(n int) { collected <- n }, last)
		return b[:]
	}
	faults := cutest.NewFaults(t)
	ctx := cutest.Context(t, cutest.Device(t, faults.Option()))
	faults.Hook("cuStreamSynchronize", func(_ sys.Call, next func() sys.CUresult) sys.CUresult {
		slice() // cleanups run after it is collected
		bait := last
		for gone := 0; gone != bait; {
			runtime.GC()
			select {
			case gone = <-collected:
				require.NotEqual(t, bait-1, gone, "the slice, before the wait was over")
			default:
			}
		}
		return next()
	})
	p := alloc(t, ctx, 4096).Ptr()
	require.NoError(t, cu.CopyToDevice(ctx, p, slice()))
	require.NoError(t, cu.CopyToHost(ctx, slice(), p))
	require.NoError(t, cu.Copy2D(ctx, cu.DeviceSide(p, 64), cu.HostSide(slice(), 64), 64, 64))
	require.NoError(t, cu.Copy3D(ctx, cu.HostSide(slice(), 64), cu.DeviceSide(p, 64), 64, 64, 1))
}
