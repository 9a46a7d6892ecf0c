package conformance

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

// null asks a call with a null pointer where a result goes, or an argument
// lies. Each may end its process.
func null(what string, call func(t testing.TB, c sys.Caller) sys.CUresult) row {
	return row{what: what, want: invalid, ask: func(t testing.TB) any { return call(t, inContext(t)) }}
}

var nulls = sheet("null pointers",
	null("cuDriverGetVersion", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuDriverGetVersion(nil) }),
	row{what: "cuGetErrorName", want: crashes, id: "wild-pointer", soft: invalid, ask: func(t testing.TB) any {
		return raw(t).CuGetErrorName(1, nil)
	}},
	row{what: "cuGetErrorString", want: crashes, id: "wild-pointer", soft: invalid, ask: func(t testing.TB) any {
		return raw(t).CuGetErrorString(1, nil)
	}},
	row{what: "a name into no bytes", want: crashes, id: "wild-pointer", soft: invalid, ask: func(t testing.TB) any {
		b := make([]byte, 100)
		return raw(t).CuDeviceGetName(&b[0], 0, 0)
	}},
	null("cuDeviceGet", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuDeviceGet(nil, 0) }),
	null("cuDeviceGetCount", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuDeviceGetCount(nil) }),
	null("cuDeviceGetName", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuDeviceGetName(nil, 100, 0) }),
	null("cuDeviceTotalMem", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuDeviceTotalMem_v2(nil, 0) }),
	null("cuDeviceGetAttribute", func(t testing.TB, c sys.Caller) sys.CUresult {
		return c.CuDeviceGetAttribute(nil, sys.CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0)
	}),
	null("cuDeviceGetPCIBusId", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuDeviceGetPCIBusId(nil, 100, 0) }),
	null("cuDeviceGetByPCIBusId, no id", func(t testing.TB, c sys.Caller) sys.CUresult {
		return c.CuDeviceGetByPCIBusId(new(sys.CUdevice), nil)
	}),
	null("cuDeviceGetByPCIBusId, no result", func(t testing.TB, c sys.Caller) sys.CUresult {
		return c.CuDeviceGetByPCIBusId(nil, sys.CString("0000:01:00.0"))
	}),
	null("cuDeviceComputeCapability", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuDeviceComputeCapability(nil, nil, 0) }),
	null("cuDeviceCanAccessPeer", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuDeviceCanAccessPeer(nil, 0, 0) }),
	null("cuDevicePrimaryCtxRetain", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuDevicePrimaryCtxRetain(nil, 0) }),
	null("cuDevicePrimaryCtxGetState", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuDevicePrimaryCtxGetState(0, nil, nil) }),
	null("cuCtxGetCurrent", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuCtxGetCurrent(nil) }),
	null("cuCtxGetDevice", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuCtxGetDevice(nil) }),
	null("cuCtxGetFlags", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuCtxGetFlags(nil) }),
	null("cuCtxGetApiVersion", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuCtxGetApiVersion(c.Context(), nil) }),
	null("cuMemAlloc", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuMemAlloc_v2(nil, unit) }),
	null("cuMemHostAlloc", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuMemHostAlloc(nil, 4*KiB, 0) }),
	null("cuMemHostGetDevicePointer, no result", func(t testing.TB, c sys.Caller) sys.CUresult {
		p, r := pinned(c, 4*KiB, 0)
		ok(t, r)
		return c.CuMemHostGetDevicePointer_v2(nil, p, 0)
	}),
	null("cuMemHostGetDevicePointer, no memory", func(t testing.TB, c sys.Caller) sys.CUresult {
		return c.CuMemHostGetDevicePointer_v2(new(sys.CUdeviceptr), nil, 0)
	}),
	null("cuStreamCreate", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuStreamCreate(nil, 0) }),
	null("cuStreamGetFlags", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuStreamGetFlags(0, nil) }),
	null("cuStreamGetPriority", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuStreamGetPriority(0, nil) }),
	null("cuStreamGetCtx", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuStreamGetCtx(0, nil) }),
	null("cuEventCreate", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuEventCreate(nil, 0) }),
	null("cuMemCreate, no result", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuMemCreate(nil, unit, propOf(0), 0) }),
	null("cuMemCreate, no properties", func(t testing.TB, c sys.Caller) sys.CUresult {
		return c.CuMemCreate(new(sys.CUmemGenericAllocationHandle), unit, nil, 0)
	}),
	null("cuMemGetAllocationGranularity, no result", func(t testing.TB, c sys.Caller) sys.CUresult {
		return c.CuMemGetAllocationGranularity(nil, propOf(0), 0)
	}),
	null("cuMemGetAllocationGranularity, no properties", func(t testing.TB, c sys.Caller) sys.CUresult {
		return c.CuMemGetAllocationGranularity(new(uintptr), nil, 0)
	}),
	null("cuMemAddressReserve", func(t testing.TB, c sys.Caller) sys.CUresult { return c.CuMemAddressReserve(nil, unit, 0, 0, 0) }),
	null("cuMemSetAccess, no descriptions", func(t testing.TB, c sys.Caller) sys.CUresult {
		p, _ := buffer(t, unit)
		return c.CuMemSetAccess(p, unit, nil, 1)
	}),
	null("cuMemGetAccess, no result", func(t testing.TB, c sys.Caller) sys.CUresult {
		p, _ := buffer(t, unit)
		return c.CuMemGetAccess(nil, &accessTo(0, 0).Location, p)
	}),
	null("cuMemGetAccess, no location", func(t testing.TB, c sys.Caller) sys.CUresult {
		p, _ := buffer(t, unit)
		return c.CuMemGetAccess(new(uint64), nil, p)
	}),
	null("cuMemExportToShareableHandle", func(t testing.TB, c sys.Caller) sys.CUresult {
		return c.CuMemExportToShareableHandle(nil, created(t, unit), handleFD, 0)
	}),
	null("cuMemImportFromShareableHandle", func(t testing.TB, c sys.Caller) sys.CUresult {
		return c.CuMemImportFromShareableHandle(nil, exported(t, created(t, unit)).Fd(), handleFD)
	}),
	null("cuMemGetAllocationPropertiesFromHandle", func(t testing.TB, c sys.Caller) sys.CUresult {
		return c.CuMemGetAllocationPropertiesFromHandle(nil, created(t, unit))
	}),
	null("cuMemRetainAllocationHandle", func(t testing.TB, c sys.Caller) sys.CUresult {
		p, _ := buffer(t, unit)
		return c.CuMemRetainAllocationHandle(nil, uintptr(p))
	}),
	row{what: "cuEventElapsedTime", want: noHandle, ask: func(t testing.TB) any {
		c := inContext(t)
		e := event(t, c, 0)
		ok(t, c.CuEventRecord(e, 0))
		ok(t, c.CuEventSynchronize(e))
		if c.Library().Has("cuEventElapsedTime_v2") {
			return c.CuEventElapsedTime_v2(nil, e, e)
		}
		return c.CuEventElapsedTime(nil, e, e)
	}},
	row{what: "cuMemGetInfo, neither", want: success, ask: func(t testing.TB) any { return inContext(t).CuMemGetInfo_v2(nil, nil) }},
	row{what: "cuMemGetInfo, no total", want: success, ask: func(t testing.TB) any {
		return inContext(t).CuMemGetInfo_v2(new(uintptr), nil)
	}},
	row{what: "cuCtxPopCurrent", want: success, ask: func(t testing.TB) any {
		c := raw(t)
		ok(t, c.CuCtxPushCurrent_v2(inContext(t).Context()))
		return c.CuCtxPopCurrent_v2(nil)
	}},
	row{what: "cuCtxGetStreamPriorityRange", want: success, ask: func(t testing.TB) any {
		return inContext(t).CuCtxGetStreamPriorityRange(nil, nil)
	}},
	row{what: "import of a null fabric handle", want: invalid, ask: func(t testing.TB) any {
		return raw(t).CuMemImportFromShareableHandle(new(sys.CUmemGenericAllocationHandle), 0, sys.CU_MEM_HANDLE_TYPE_FABRIC)
	}},
	row{what: "import of a wild fabric handle", want: crashes, id: "wild-pointer", soft: invalid, ask: func(t testing.TB) any {
		return raw(t).CuMemImportFromShareableHandle(new(sys.CUmemGenericAllocationHandle), 1<<40, sys.CU_MEM_HANDLE_TYPE_FABRIC)
	}},
	row{what: "import of a fabric handle of zeros", want: notSupported, ask: func(t testing.TB) any {
		b := make([]byte, 64)
		return raw(t).CuMemImportFromShareableHandle(new(sys.CUmemGenericAllocationHandle), addressOf(at(b)), sys.CU_MEM_HANDLE_TYPE_FABRIC)
	}},
)

func TestC19_NullPointers(t *testing.T) { nulls.check(t) }
