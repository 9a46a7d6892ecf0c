package conformance

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

// Calls that are bound to a context, on a thread without one. What they are
// given is there, in the primary context.
func TestC12_NoContext(t *testing.T) {
	in := inContext(t)
	p, s, e := plain(t, in, unit), stream(t, in), event(t, in, 0)
	host, r := pinned(in, 4*KiB, 0)
	ok(t, r)
	b := make([]byte, 8)
	c := withoutContext(t)
	for _, x := range []struct {
		what string
		want sys.CUresult
		call func() sys.CUresult
	}{
		{"cuCtxGetDevice", noContext, func() sys.CUresult { return c.CuCtxGetDevice(new(sys.CUdevice)) }},
		{"cuCtxGetFlags", noContext, func() sys.CUresult { return c.CuCtxGetFlags(new(uint32)) }},
		{"cuCtxGetApiVersion", noContext, func() sys.CUresult { return c.CuCtxGetApiVersion(0, new(uint32)) }},
		{"cuCtxGetStreamPriorityRange", noContext, func() sys.CUresult { return c.CuCtxGetStreamPriorityRange(new(int32), new(int32)) }},
		{"cuCtxSynchronize", noContext, func() sys.CUresult { return c.CuCtxSynchronize() }},
		{"cuCtxPopCurrent", noContext, func() sys.CUresult { return c.CuCtxPopCurrent_v2(new(sys.CUcontext)) }},
		{"cuMemAlloc", noContext, func() sys.CUresult { return c.CuMemAlloc_v2(new(sys.CUdeviceptr), unit) }},
		{"cuMemAlloc of nothing", noContext, func() sys.CUresult { return c.CuMemAlloc_v2(new(sys.CUdeviceptr), 0) }},
		{"cuMemFree of address 0", success, func() sys.CUresult { return c.CuMemFree_v2(0) }},
		{"cuMemFree of no memory", invalid, func() sys.CUresult { return c.CuMemFree_v2(1 << 45) }},
		{"cuMemGetInfo", noContext, func() sys.CUresult { return c.CuMemGetInfo_v2(new(uintptr), new(uintptr)) }},
		{"cuMemGetAddressRange", noContext, func() sys.CUresult {
			return c.CuMemGetAddressRange_v2(new(sys.CUdeviceptr), new(uintptr), p)
		}},
		{"cuMemHostAlloc", noContext, func() sys.CUresult { _, r := pinned(c, 4*KiB, 0); return r }},
		{"cuMemHostGetDevicePointer", noContext, func() sys.CUresult {
			return c.CuMemHostGetDevicePointer_v2(new(sys.CUdeviceptr), host, 0)
		}},
		{"cuMemHostGetFlags", noContext, func() sys.CUresult { return c.CuMemHostGetFlags(new(uint32), host) }},
		{"cuMemcpyHtoD", noContext, func() sys.CUresult { return c.CuMemcpyHtoD_v2(p, at(b), 8) }},
		{"cuMemcpyHtoD of nothing", noContext, func() sys.CUresult { return c.CuMemcpyHtoD_v2(0, nil, 0) }},
		{"cuMemcpyDtoH", noContext, func() sys.CUresult { return c.CuMemcpyDtoH_v2(at(b), p, 8) }},
		{"cuMemcpyDtoHAsync", success, func() sys.CUresult { return c.CuMemcpyDtoHAsync_v2(at(b), p, 8, s) }},
		{"cuMemcpyDtoHAsync, no stream", noContext, func() sys.CUresult { return c.CuMemcpyDtoHAsync_v2(at(b), p, 8, 0) }},
		{"cuMemcpyDtoD", noContext, func() sys.CUresult { return c.CuMemcpyDtoD_v2(p, p+8, 8) }},
		{"cuMemcpy", noContext, func() sys.CUresult { return c.CuMemcpy(p, p+8, 8) }},
		{"cuMemsetD8", noContext, func() sys.CUresult { return c.CuMemsetD8_v2(p, 1, 8) }},
		{"cuMemsetD8Async", success, func() sys.CUresult { return c.CuMemsetD8Async(p, 1, 8, s) }},
		{"cuStreamCreate", noContext, func() sys.CUresult { return c.CuStreamCreate(new(sys.CUstream), 0) }},
		{"cuStreamSynchronize", success, func() sys.CUresult { return c.CuStreamSynchronize(s) }},
		{"cuStreamQuery", success, func() sys.CUresult { return c.CuStreamQuery(s) }},
		{"cuStreamSynchronize, no stream", noContext, func() sys.CUresult { return c.CuStreamSynchronize(0) }},
		{"cuStreamGetFlags", success, func() sys.CUresult { return c.CuStreamGetFlags(s, new(uint32)) }},
		{"cuStreamGetPriority", success, func() sys.CUresult { return c.CuStreamGetPriority(s, new(int32)) }},
		{"cuStreamGetCtx", success, func() sys.CUresult { return c.CuStreamGetCtx(s, new(sys.CUcontext)) }},
		{"cuStreamWaitEvent", success, func() sys.CUresult { return c.CuStreamWaitEvent(s, e, 0) }},
		{"cuEventCreate", noContext, func() sys.CUresult { return c.CuEventCreate(new(sys.CUevent), 0) }},
		{"cuEventRecord", success, func() sys.CUresult { return c.CuEventRecord(e, s) }},
		{"cuEventRecord, no stream", noContext, func() sys.CUresult { return c.CuEventRecord(e, 0) }},
		{"cuEventSynchronize", success, func() sys.CUresult { return c.CuEventSynchronize(e) }},
		{"cuEventQuery", success, func() sys.CUresult { return c.CuEventQuery(e) }},
		{"cuCtxGetCurrent", success, func() sys.CUresult { return c.CuCtxGetCurrent(new(sys.CUcontext)) }},
		{"cuCtxSetCurrent to none", success, func() sys.CUresult { return c.CuCtxSetCurrent(0) }},
		{"cuCtxPushCurrent of none", invalid, func() sys.CUresult { return c.CuCtxPushCurrent_v2(0) }},
	} {
		check(t, x.what, x.want, x.call())
		ctx := new(sys.CUcontext)
		ok(t, c.CuCtxGetCurrent(ctx))
		check(t, x.what+" leaves no context", 0, uintptr(*ctx))
	}
	ok(t, in.CuMemFreeHost(host))
}

// giveBack are calls that give something back without a current context.
var giveBack = sheet("give back without a context",
	row{what: "cuMemFree", want: success, ask: func(t testing.TB) any {
		p := plain(t, inContext(t), unit)
		return withoutContext(t).CuMemFree_v2(p)
	}},
	row{what: "cuMemFreeHost", want: success, ask: func(t testing.TB) any {
		p, r := pinned(inContext(t), 4*KiB, 0)
		ok(t, r)
		return withoutContext(t).CuMemFreeHost(p)
	}},
	row{what: "cuStreamDestroy", want: success, ask: func(t testing.TB) any {
		s := stream(t, inContext(t))
		return withoutContext(t).CuStreamDestroy_v2(s)
	}},
	row{what: "cuEventDestroy", want: success, ask: func(t testing.TB) any {
		e := event(t, inContext(t), 0)
		return withoutContext(t).CuEventDestroy_v2(e)
	}},
	row{what: "cuEventElapsedTime", want: success, ask: func(t testing.TB) any {
		c := inContext(t)
		e := event(t, c, 0)
		ok(t, c.CuEventRecord(e, 0))
		ok(t, c.CuEventSynchronize(e))
		_, r := elapsed(withoutContext(t), e, e)
		return r
	}},
)

func TestC12_GiveBackWithoutContext(t *testing.T) { giveBack.check(t) }
