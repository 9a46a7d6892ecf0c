package conformance

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

func TestC20_Init(t *testing.T) {
	c := raw(t)
	check(t, "again", success, c.CuInit(0))
	check(t, "with flags", invalid, c.CuInit(1))
}

func TestC18_DeviceGet(t *testing.T) {
	c := raw(t)
	d := new(sys.CUdevice)
	check(t, "device 0", success, c.CuDeviceGet(d, 0))
	check(t, "is", 0, *d)
	check(t, "device -1", noDevice, c.CuDeviceGet(d, -1))
	check(t, "device 99", noDevice, c.CuDeviceGet(d, 99))
}

func TestC18_DeviceUnknown(t *testing.T) {
	c := raw(t)
	name := make([]byte, 100)
	for _, x := range []struct {
		what string
		call func(d sys.CUdevice) sys.CUresult
	}{
		{"name", func(d sys.CUdevice) sys.CUresult { return c.CuDeviceGetName(&name[0], 100, d) }},
		{"UUID", func(d sys.CUdevice) sys.CUresult { return deviceUUID(c, d) }},
		{"memory", func(d sys.CUdevice) sys.CUresult { return c.CuDeviceTotalMem_v2(new(uintptr), d) }},
		{"attribute", func(d sys.CUdevice) sys.CUresult {
			return c.CuDeviceGetAttribute(new(int32), sys.CU_DEVICE_ATTRIBUTE_WARP_SIZE, d)
		}},
		{"compute capability", func(d sys.CUdevice) sys.CUresult {
			return c.CuDeviceComputeCapability(new(int32), new(int32), d)
		}},
		{"PCI id", func(d sys.CUdevice) sys.CUresult { return c.CuDeviceGetPCIBusId(&name[0], 100, d) }},
		{"state of the primary context", func(d sys.CUdevice) sys.CUresult {
			return c.CuDevicePrimaryCtxGetState(d, new(uint32), new(int32))
		}},
		{"flags of the primary context", func(d sys.CUdevice) sys.CUresult { return c.CuDevicePrimaryCtxSetFlags_v2(d, 0) }},
		{"primary context", func(d sys.CUdevice) sys.CUresult { return c.CuDevicePrimaryCtxRetain(new(sys.CUcontext), d) }},
		{"release of the primary context", func(d sys.CUdevice) sys.CUresult { return c.CuDevicePrimaryCtxRelease_v2(d) }},
		{"peer", func(d sys.CUdevice) sys.CUresult { return c.CuDeviceCanAccessPeer(new(int32), d, 0) }},
		{"whose peer", func(d sys.CUdevice) sys.CUresult { return c.CuDeviceCanAccessPeer(new(int32), 0, d) }},
	} {
		check(t, x.what+" of device 99", noDevice, x.call(99))
		check(t, x.what+" of device -1", noDevice, x.call(-1))
	}
}

// deviceUUID asks for a UUID in whichever ABI there is.
func deviceUUID(c sys.Caller, d sys.CUdevice) sys.CUresult {
	if c.Library().Has("cuDeviceGetUuid_v2") {
		return c.CuDeviceGetUuid_v2(new(sys.CUuuid), d)
	}
	return c.CuDeviceGetUuid(new(sys.CUuuid), d)
}

func TestC18_DeviceAttribute(t *testing.T) {
	c := raw(t)
	get := func(a sys.CUdevice_attribute) any {
		v := new(int32)
		if r := c.CuDeviceGetAttribute(v, a, 0); r != success {
			return r
		}
		return *v
	}
	check(t, "the size of a warp", 32, get(sys.CU_DEVICE_ATTRIBUTE_WARP_SIZE))
	check(t, "virtual memory management", 1, get(sys.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
	check(t, "descriptors of memory", 1, get(sys.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
	check(t, "unified addressing", 1, get(sys.CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING))
	check(t, "attribute 0", invalid, get(0))
	check(t, "attribute 9999", invalid, get(9999))
	check(t, "attribute -1", invalid, get(1<<32-1))
	check(t, "the end of the list", invalid, get(sys.CU_DEVICE_ATTRIBUTE_MAX))
}

func TestC18_DeviceText(t *testing.T) {
	c := raw(t)
	text := func(call func(*byte, int32, sys.CUdevice) sys.CUresult, size int32) any {
		b := make([]byte, 100)
		if r := call(&b[0], size, 0); r != success {
			return r
		}
		return sys.GoString(&b[0], 100)
	}
	whole, isName := text(c.CuDeviceGetName, 100).(string)
	check(t, "a name", true, isName && len(whole) > 4)
	check(t, "a name cut to fit", whole[:3], text(c.CuDeviceGetName, 4))
	check(t, "a name into one byte", "", text(c.CuDeviceGetName, 1))

	id, isID := text(c.CuDeviceGetPCIBusId, 100).(string)
	check(t, "a PCI id", true, isID && len(id) == len("0000:01:00.0"))

	d := new(sys.CUdevice)
	find := func(s string) sys.CUresult { return c.CuDeviceGetByPCIBusId(d, sys.CString(s)) }
	check(t, "the device of that id", success, find(id))
	check(t, "without the domain", success, find(id[len("0000:"):]))
	check(t, "without the function", success, find(id[:len(id)-2]))
	check(t, "with more before it", success, find("0000"+id))
	check(t, "with a space before it", success, find(" "+id))
	check(t, "with a letter after it", success, find(id+"x"))
	check(t, "of another domain", noDevice, find("1"+id[1:]))
	check(t, "bus and device alone", invalid, find(id[len("0000:"):len(id)-2]))
	check(t, "no hexadecimal digits", invalid, find("zz:zz.z"))
	check(t, "of another id", noDevice, find("0000:fe:1f.0"))
	check(t, "of garbage", invalid, find("garbage"))
	check(t, "of nothing", invalid, find(""))
}

// textInto asks for a text in a buffer said to be of some size.
func textInto(what string, want any, call func(sys.Caller, *byte, int32, sys.CUdevice) sys.CUresult, size int32) row {
	return row{what: what, want: want, ask: func(t testing.TB) any {
		b := make([]byte, 100)
		if r := call(raw(t), &b[0], size, 0); r != success {
			return r
		}
		return len(sys.GoString(&b[0], 100))
	}}
}

var shortTexts = sheet("short texts",
	textInto("a PCI id into nothing", invalid, sys.Caller.CuDeviceGetPCIBusId, 0),
	textInto("a PCI id into less", invalid, sys.Caller.CuDeviceGetPCIBusId, -1),
	textInto("a PCI id into one byte", invalid, sys.Caller.CuDeviceGetPCIBusId, 1),
	textInto("a PCI id into too little", invalid, sys.Caller.CuDeviceGetPCIBusId, 5),
	textInto("a PCI id into just enough", 12, sys.Caller.CuDeviceGetPCIBusId, 13),
	textInto("a PCI id without the end", invalid, sys.Caller.CuDeviceGetPCIBusId, 12),
)

func TestC18_ShortTexts(t *testing.T) { shortTexts.check(t) }

func TestC18_Peer(t *testing.T) {
	can := new(int32)
	*can = 7
	check(t, "of itself", success, raw(t).CuDeviceCanAccessPeer(can, 0, 0))
	check(t, "is", 0, *can)
}

func TestC19_ErrorText(t *testing.T) {
	c := raw(t)
	p := new(*byte)
	check(t, "the name of success", success, c.CuGetErrorName(0, p))
	check(t, "is", "CUDA_SUCCESS", sys.GoString(*p, 100))
	check(t, "the name of 201", success, c.CuGetErrorName(201, p))
	check(t, "is, of 201", "CUDA_ERROR_INVALID_CONTEXT", sys.GoString(*p, 100))
	check(t, "the name of 12345", invalid, c.CuGetErrorName(12345, p))
	check(t, "is none", true, *p == nil)
	*p = sys.CString("before")
	check(t, "the text of 12345", invalid, c.CuGetErrorString(12345, p))
	check(t, "is none, too", true, *p == nil)
}

var noDevices = sheet("no devices",
	row{what: "cuInit", want: sys.CUDA_ERROR_NO_DEVICE, env: []string{"CUDA_VISIBLE_DEVICES="}, ask: func(t testing.TB) any {
		return unopened(t).CuInit(0)
	}},
	row{what: "cuInit again", want: sys.CUDA_ERROR_NO_DEVICE, ask: func(t testing.TB) any { return unopened(t).CuInit(0) }},
	row{what: "cuDeviceGetCount", want: sys.CUDA_ERROR_NOT_INITIALIZED, ask: func(t testing.TB) any {
		return unopened(t).CuDeviceGetCount(new(int32))
	}},
)

func TestD19_NoDevice(t *testing.T) { noDevices.check(t) }

// before asks before cuInit.
func before(what string, want any, call func(c sys.Caller) sys.CUresult) row {
	return row{what: what, want: want, ask: func(t testing.TB) any { return call(unopened(t)) }}
}

var beforeInit = sheet("before cuInit",
	before("cuDriverGetVersion", success, func(c sys.Caller) sys.CUresult { return c.CuDriverGetVersion(new(int32)) }),
	before("cuGetErrorName", success, func(c sys.Caller) sys.CUresult { return c.CuGetErrorName(1, new(*byte)) }),
	before("cuDeviceGetCount", sys.CUDA_ERROR_NOT_INITIALIZED, func(c sys.Caller) sys.CUresult { return c.CuDeviceGetCount(new(int32)) }),
	before("cuCtxGetCurrent", sys.CUDA_ERROR_NOT_INITIALIZED, func(c sys.Caller) sys.CUresult { return c.CuCtxGetCurrent(new(sys.CUcontext)) }),
	before("cuCtxSetCurrent", sys.CUDA_ERROR_NOT_INITIALIZED, func(c sys.Caller) sys.CUresult { return c.CuCtxSetCurrent(0) }),
	before("cuMemAlloc", sys.CUDA_ERROR_NOT_INITIALIZED, func(c sys.Caller) sys.CUresult { return c.CuMemAlloc_v2(new(sys.CUdeviceptr), unit) }),
	before("cuMemCreate", sys.CUDA_ERROR_NOT_INITIALIZED, func(c sys.Caller) sys.CUresult {
		return c.CuMemCreate(new(sys.CUmemGenericAllocationHandle), unit, propOf(0), 0)
	}),
	before("cuMemRelease", sys.CUDA_ERROR_NOT_INITIALIZED, func(c sys.Caller) sys.CUresult { return c.CuMemRelease(1) }),
	before("cuMemUnmap", sys.CUDA_ERROR_NOT_INITIALIZED, func(c sys.Caller) sys.CUresult { return c.CuMemUnmap(0, 0) }),
	before("cuMemImportFromShareableHandle", sys.CUDA_ERROR_NOT_INITIALIZED, func(c sys.Caller) sys.CUresult {
		return c.CuMemImportFromShareableHandle(new(sys.CUmemGenericAllocationHandle), 1, handleFD)
	}),
	before("cuStreamSynchronize", sys.CUDA_ERROR_NOT_INITIALIZED, func(c sys.Caller) sys.CUresult { return c.CuStreamSynchronize(0) }),
	before("cuMemcpyDtoD", sys.CUDA_ERROR_NOT_INITIALIZED, func(c sys.Caller) sys.CUresult { return c.CuMemcpyDtoD_v2(0, 0, 8) }),
	before("cuInit with flags", invalid, func(c sys.Caller) sys.CUresult { return c.CuInit(1) }),
)

func TestC20_BeforeInit(t *testing.T) { beforeInit.check(t) }
