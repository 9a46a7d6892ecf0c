package soft

import (
	"strings"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

func TestDevices(t *testing.T) {
	c := initialised(t)
	n, dev := new(int32), new(sys.CUdevice)
	ok(t, c.CuDeviceGetCount(n))
	require.EqualValues(t, 2, *n)
	ok(t, c.CuDeviceGet(dev, 1))
	require.EqualValues(t, 1, *dev)
	for _, bad := range []int32{-1, 2, 1 << 30} {
		want(t, sys.CUDA_ERROR_INVALID_DEVICE, c.CuDeviceGet(dev, bad))
		want(t, sys.CUDA_ERROR_INVALID_DEVICE, c.CuDeviceTotalMem_v2(new(uintptr), sys.CUdevice(bad)))
	}
	bytes := new(uintptr)
	ok(t, c.CuDeviceTotalMem_v2(bytes, 0))
	require.EqualValues(t, testMemory, *bytes)
	major, minor := new(int32), new(int32)
	ok(t, c.CuDeviceComputeCapability(major, minor, 0))
	require.Equal(t, []int32{9, 0}, []int32{*major, *minor})
	can := new(int32)
	ok(t, c.CuDeviceCanAccessPeer(can, 0, 1))
	require.EqualValues(t, 1, *can)
	ok(t, c.CuDeviceCanAccessPeer(can, 1, 1))
	require.EqualValues(t, 0, *can)
	want(t, sys.CUDA_ERROR_INVALID_DEVICE, c.CuDeviceCanAccessPeer(can, 0, 2))
}

func TestDeviceStrings(t *testing.T) {
	c := initialised(t)
	b := []byte(strings.Repeat("x", 40))
	ok(t, c.CuDeviceGetName(&b[0], 40, 0))
	require.Equal(t, deviceName, sys.GoString(&b[0], 40))
	ok(t, c.CuDeviceGetName(&b[0], 6, 0))
	require.Equal(t, "gpufd\x00softwar", string(b[:13]), "nothing written past the buffer")
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetName(&b[0], 0, 0))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetName(nil, 10, 0))
	ok(t, c.CuDeviceGetPCIBusId(&b[0], 40, 1))
	require.Equal(t, "0000:02:00.0", sys.GoString(&b[0], 40))
	dev := new(sys.CUdevice)
	ok(t, c.CuDeviceGetByPCIBusId(dev, &b[0]))
	require.EqualValues(t, 1, *dev)
	want(t, sys.CUDA_ERROR_INVALID_DEVICE, c.CuDeviceGetByPCIBusId(dev, sys.CString("0000:77:00.0")))
}

func TestAttributes(t *testing.T) {
	c := initialised(t)
	v := new(int32)
	for a := sys.CUdevice_attribute(1); a < sys.CU_DEVICE_ATTRIBUTE_MAX; a++ {
		ok(t, c.CuDeviceGetAttribute(v, a, 0))
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetAttribute(v, sys.CU_DEVICE_ATTRIBUTE_MAX, 0))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetAttribute(v, 0, 0))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetAttribute(nil, 1, 0))
	want(t, sys.CUDA_ERROR_INVALID_DEVICE, c.CuDeviceGetAttribute(v, 1, 2))
	for a, n := range map[sys.CUdevice_attribute]int32{
		sys.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:         1,
		sys.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: 1,
		sys.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:                1, // D20
		sys.CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:                         1,
		sys.CU_DEVICE_ATTRIBUTE_WARP_SIZE:                                   32,
		sys.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:                                  1,
	} {
		ok(t, c.CuDeviceGetAttribute(v, a, 0))
		require.Equal(t, n, *v, a)
	}
}

// UUIDs are the directory's: the same in every process that uses it.
func TestUUIDs(t *testing.T) {
	here := output(t, "uuids")
	uuids := strings.Fields(here)
	require.Len(t, uuids, 2)
	require.NotEqual(t, uuids[0], uuids[1])
	require.Equal(t, here, output(t, "uuids"))
	elsewhere := output(t, "uuids", envDir+"="+t.TempDir()+"/new")
	require.NotContains(t, elsewhere, uuids[0])
	swapped := strings.Fields(output(t, "uuids", envVisible+"="+uuids[1][:20]+","+"0"))
	require.Equal(t, []string{uuids[1], uuids[0]}, swapped)
	u := new(sys.CUuuid)
	ok(t, initialised(t).CuDeviceGetUuid(u, 0))
	require.Equal(t, uuids[0], "GPU-"+uuidText(u.Bytes))
}

// A null pointer for a result is an error, not a crash.
func TestNullResults(t *testing.T) {
	c := inContext(t, 0)
	for _, r := range []sys.CUresult{
		c.CuDeviceGet(nil, 0), c.CuDeviceGetCount(nil), c.CuDeviceGetUuid_v2(nil, 0), c.CuDeviceTotalMem_v2(nil, 0),
		c.CuDeviceComputeCapability(nil, nil, 0), c.CuDeviceCanAccessPeer(nil, 0, 1), c.CuDeviceGetPCIBusId(nil, 9, 0),
		c.CuDevicePrimaryCtxRetain(nil, 0), c.CuDevicePrimaryCtxGetState(0, nil, nil), c.CuCtxGetCurrent(nil),
		c.CuCtxGetDevice(nil), c.CuCtxGetFlags(nil), c.CuCtxGetApiVersion(0, nil), c.CuMemAlloc_v2(nil, 1),
		c.CuMemHostAlloc(nil, 1, 0), c.CuStreamCreate(nil, 0), c.CuEventCreate(nil, 0),
		c.CuStreamGetFlags(0, nil), c.CuMemGetAllocationGranularity(nil, propOf(0), 0), c.CuMemCreate(nil, 2*MiB, propOf(0), 0),
		c.CuMemCreate(new(sys.CUmemGenericAllocationHandle), 2*MiB, nil, 0), c.CuMemAddressReserve(nil, 2*MiB, 0, 0, 0),
		c.CuMemImportFromShareableHandle(nil, 1, 1), c.CuMemRetainAllocationHandle(nil, 0), c.CuMemGetAccess(nil, nil, 0),
	} {
		want(t, sys.CUDA_ERROR_INVALID_VALUE, r)
	}
}
