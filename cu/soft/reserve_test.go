package soft

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

func TestCreateAndReserve(t *testing.T) {
	initialised(t)
	g := new(uintptr)
	for _, option := range []sys.CUmemAllocationGranularity_flags{0, 1} {
		ok(t, caller.CuMemGetAllocationGranularity(g, propOf(0), option)) // D14
		require.EqualValues(t, 2*MiB, *g)
	}
	invalid := sys.CUDA_ERROR_INVALID_VALUE
	want(t, invalid, caller.CuMemGetAllocationGranularity(g, propOf(0), 2))
	ok(t, caller.CuMemGetAllocationGranularity(g, propOf(2), 0)) // it does not look
	var h sys.CUmemGenericAllocationHandle
	for _, size := range []uintptr{0, 1, MiB, 2*MiB + 1} {
		want(t, invalid, caller.CuMemCreate(&h, size, propOf(0), 0)) // D15
		want(t, invalid, caller.CuMemAddressReserve((*sys.CUdeviceptr)(&h), size, 0, 0, 0))
	}
	want(t, sys.CUDA_ERROR_OUT_OF_MEMORY, caller.CuMemCreate(&h, 4<<40, propOf(0), 0)) // D15
	want(t, sys.CUDA_ERROR_OUT_OF_MEMORY, caller.CuMemCreate(&h, ^uintptr(2*MiB-1), propOf(0), 0))
	want(t, invalid, caller.CuMemCreate(&h, 2*MiB, propOf(0), 1))
	want(t, sys.CUDA_ERROR_INVALID_DEVICE, caller.CuMemCreate(&h, 2*MiB, propOf(-1), 0))
	fabric, managed, host := propOf(0), propOf(0), propOf(0)
	fabric.RequestedHandleTypes = sys.CU_MEM_HANDLE_TYPE_FABRIC
	want(t, sys.CUDA_ERROR_NOT_PERMITTED, caller.CuMemCreate(&h, 2*MiB, fabric, 0)) // D20
	managed.Type = sys.CU_MEM_ALLOCATION_TYPE_MANAGED
	want(t, invalid, caller.CuMemCreate(&h, 2*MiB, managed, 0))
	host.Location.Type = sys.CU_MEM_LOCATION_TYPE_HOST
	want(t, invalid, caller.CuMemCreate(&h, 2*MiB, host, 0))
	host.Location.Type = sys.CU_MEM_LOCATION_TYPE_HOST_NUMA
	want(t, sys.CUDA_ERROR_NOT_SUPPORTED, caller.CuMemCreate(&h, 2*MiB, host, 0))
}

func TestReservationPlace(t *testing.T) {
	initialised(t)
	p, q := new(sys.CUdeviceptr), new(sys.CUdeviceptr)
	ok(t, caller.CuMemAddressReserve(p, 2*MiB, 64*MiB, 0, 0))
	require.Zero(t, *p%(64*MiB))
	ok(t, caller.CuMemAddressReserve(q, 2*MiB, 0, *p, 0)) // taken: somewhere else
	require.NotEqual(t, *p, *q)
	ok(t, caller.CuMemAddressFree(*p, 2*MiB))
	hint := *p
	ok(t, caller.CuMemAddressReserve(p, 2*MiB, 0, hint, 0))
	require.Equal(t, hint, *p)
	ok(t, caller.CuMemAddressFree(*p, 2*MiB))
	ok(t, caller.CuMemAddressFree(*q, 2*MiB))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemAddressReserve(p, 2*MiB, 3*MiB, 0, 0))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemAddressReserve(p, 2*MiB, 0, 0, 1))
	want(t, sys.CUDA_ERROR_OUT_OF_MEMORY, caller.CuMemAddressReserve(p, ^uintptr(2*MiB-1), 0, 0, 0))
}

// Thousands of chunks side by side, one copy over all.
func TestManyChunks(t *testing.T) {
	const chunks = testMemory / (2 * MiB)
	c := inContext(t, 0)
	p := reserved(t, testMemory)
	for i := range chunks {
		at := p + sys.CUdeviceptr((i*7%chunks)*2*MiB) // out of order
		mapped(t, at, 2*MiB, create(t, 2*MiB, 0))
	}
	ok(t, caller.CuMemSetAccess(p, testMemory, accessTo(0, readWrite), 1))
	data, got := pattern(testMemory-2, 5), make([]byte, testMemory-2)
	ok(t, c.CuMemcpyHtoD_v2(p+1, at(data), testMemory-2))
	ok(t, c.CuMemcpyDtoH_v2(at(got), p+1, testMemory-2))
	require.Equal(t, data, got)
	var h sys.CUmemGenericAllocationHandle
	want(t, sys.CUDA_ERROR_OUT_OF_MEMORY, caller.CuMemCreate(&h, 2*MiB, propOf(0), 0))
}
