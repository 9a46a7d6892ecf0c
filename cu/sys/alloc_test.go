package sys

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// hotCalls are what a program calls in its inner loop (invariant 10). They
// reach libc's labs, which ignores what it does not know.
func hotCalls() map[string]func(c Caller) CUresult {
	host, params, p := unsafe.Pointer(new([8]byte)), new(unsafe.Pointer), CUdeviceptr(0x7f0000001000)
	return map[string]func(c Caller) CUresult{
		"cuLaunchKernel":         func(c Caller) CUresult { return c.CuLaunchKernel(1, 2, 3, 4, 5, 6, 7, 8, 9, params, nil) },
		"cuMemcpyHtoDAsync_v2":   func(c Caller) CUresult { return c.CuMemcpyHtoDAsync_v2(p, host, 8, 1) },
		"cuMemcpyDtoHAsync_v2":   func(c Caller) CUresult { return c.CuMemcpyDtoHAsync_v2(host, p, 8, 1) },
		"cuMemcpyDtoDAsync_v2":   func(c Caller) CUresult { return c.CuMemcpyDtoDAsync_v2(p, p, 8, 1) },
		"cuMemsetD8Async":        func(c Caller) CUresult { return c.CuMemsetD8Async(p, 1, 8, 1) },
		"cuMemsetD32Async":       func(c Caller) CUresult { return c.CuMemsetD32Async(p, 1, 8, 1) },
		"cuEventRecord":          func(c Caller) CUresult { return c.CuEventRecord(1, 2) },
		"cuEventQuery":           func(c Caller) CUresult { return c.CuEventQuery(1) },
		"cuEventSynchronize":     func(c Caller) CUresult { return c.CuEventSynchronize(1) },
		"cuStreamQuery":          func(c Caller) CUresult { return c.CuStreamQuery(1) },
		"cuStreamSynchronize":    func(c Caller) CUresult { return c.CuStreamSynchronize(1) },
		"cuStreamWaitEvent":      func(c Caller) CUresult { return c.CuStreamWaitEvent(1, 2, 0) },
		"cuStreamWaitValue32_v2": func(c Caller) CUresult { return c.CuStreamWaitValue32_v2(1, p, 3, 0) },
		"cuStreamWaitValue64_v2": func(c Caller) CUresult { return c.CuStreamWaitValue64_v2(1, p, 3, 0) },
		"cuStreamWriteValue32_v2": func(c Caller) CUresult {
			return c.CuStreamWriteValue32_v2(1, p, 3, 0)
		},
		"cuStreamWriteValue64_v2": func(c Caller) CUresult {
			return c.CuStreamWriteValue64_v2(1, p, 3, 0)
		},
	}
}

// bindable is a context that isdigit, which stands for cuCtxSetCurrent here,
// answers with 0: it is no digit.
const bindable = CUcontext(1)

func TestHotCallsDoNotAllocate(t *testing.T) {
	owner := unsafe.Pointer(new(int))
	for symbol, call := range hotCalls() {
		t.Run(symbol, func(t *testing.T) {
			c := libcLibrary(t, map[string]string{symbol: "labs", bindSymbol: "isdigit"}).Caller()
			require.NotZero(t, call(c), "labs of an argument that is not 0")
			require.Zero(t, testing.AllocsPerRun(200, func() { call(c) }))
			require.Zero(t, testing.AllocsPerRun(200, func() { call(c.With(bindable).Keep(owner)) }), "with a context")
		})
	}
}

// An out-pointer is a variable of the caller's, which moves to the heap: one
// allocation, and not for every pointer that the call keeps.
func TestOutPointersCostOneAllocationEach(t *testing.T) {
	c := libcLibrary(t, map[string]string{"cuMemAllocAsync": "labs"}).Caller()
	require.EqualValues(t, 1, testing.AllocsPerRun(200, func() {
		var p CUdeviceptr
		c.CuMemAllocAsync(&p, 4096, 1)
	}))
}
