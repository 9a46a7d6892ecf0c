package soft

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

// linear returns memory of cuMemAlloc, freed when the test ends.
func linear(t testing.TB, c sys.Caller, n uintptr) sys.CUdeviceptr {
	t.Helper()
	p := new(sys.CUdeviceptr)
	ok(t, c.CuMemAlloc_v2(p, n))
	t.Cleanup(func() { ok(t, c.CuMemFree_v2(*p)) })
	return *p
}

// twoMappings returns 4 MiB in two pieces side by side, and the second one's
// address.
func twoMappings(t testing.TB) (p, border sys.CUdeviceptr) {
	t.Helper()
	p = reserved(t, 6*MiB)
	mapped(t, p, 2*MiB, create(t, 2*MiB, 0))
	mapped(t, p+2*MiB, 2*MiB, create(t, 2*MiB, 0))
	ok(t, caller.CuMemSetAccess(p, 4*MiB, accessTo(0, readWrite), 1))
	return p, p + 2*MiB
}

// Copies and sets cross the border of two mappings like any other place.
func TestAcrossBorder(t *testing.T) { // fault 71
	c := inContext(t, 0)
	_, border := twoMappings(t)
	data, got := pattern(1000, 9), make([]byte, 1000)
	ok(t, c.CuMemcpyHtoD_v2(border-500, at(data), 1000))
	ok(t, c.CuMemcpyDtoH_v2(at(got), border-500, 1000))
	require.Equal(t, data, got)
	q := linear(t, c, 1000)
	ok(t, c.CuMemcpyDtoD_v2(q, border-500, 1000))
	ok(t, c.CuMemsetD32_v2(border-8, 0x01020304, 4))
	ok(t, c.CuMemcpyDtoD_v2(border-600, border-8, 16))
	ok(t, c.CuMemcpyDtoH_v2(at(got), border-600, 16))
	require.Equal(t, []byte{4, 3, 2, 1, 4, 3, 2, 1, 4, 3, 2, 1, 4, 3, 2, 1}, got[:16])
	ok(t, c.CuMemcpyDtoH_v2(at(got), q, 1000))
	require.Equal(t, data, got)
}

// A copy that runs off the end copies nothing.
func TestOffTheEnd(t *testing.T) {
	c := inContext(t, 0)
	p, border := twoMappings(t)
	end := border + 2*MiB
	b := []byte{1, 2, 3, 4}
	invalid := sys.CUDA_ERROR_INVALID_VALUE
	want(t, invalid, c.CuMemcpyHtoD_v2(end-3, at(b), 4))
	want(t, invalid, c.CuMemsetD8_v2(end-3, 5, 4))
	want(t, invalid, c.CuMemcpyDtoD_v2(p, end-3, 4))
	ok(t, caller.CuMemSetAccess(border, 2*MiB, accessTo(0, readOnly), 1))
	want(t, invalid, c.CuMemcpyHtoD_v2(border-2, at(b), 4))
	ok(t, c.CuMemcpyDtoH_v2(at(b), border-2, 4))
	require.Equal(t, make([]byte, 4), b)
	ok(t, c.CuMemcpyDtoH_v2(at(b), end-4, 4))
	require.Equal(t, make([]byte, 4), b)

	q := linear(t, c, 100) // one byte too many is one too many
	want(t, invalid, c.CuMemsetD8_v2(q, 5, 101))
	want(t, invalid, c.CuMemsetD8_v2(q+100, 5, 1))
	want(t, invalid, c.CuMemsetD8_v2(q, 5, ^uintptr(0)))
	want(t, invalid, c.CuMemsetD32_v2(q, 5, 1<<62))
	ok(t, c.CuMemsetD8_v2(q, 5, 100))
}

func TestBadAddresses(t *testing.T) {
	c := inContext(t, 0)
	q := linear(t, c, 100)
	b := make([]byte, 100)
	invalid := sys.CUDA_ERROR_INVALID_VALUE
	want(t, invalid, c.CuMemcpyHtoD_v2(0, at(b), 1))
	want(t, invalid, c.CuMemcpyHtoD_v2(4096, at(b), 1))
	want(t, invalid, c.CuMemcpyHtoD_v2(q, nil, 1))
	want(t, invalid, c.CuMemsetD16_v2(q+1, 1, 1)) // not aligned
	want(t, invalid, c.CuMemsetD32_v2(q+2, 1, 1))
	want(t, invalid, c.CuMemcpyHtoD_v2(q, wild(), 1)) // the real one would crash
	want(t, invalid, c.CuMemcpyHtoDAsync_v2(q, wild(), 1, 0))
	want(t, invalid, c.CuMemcpyDtoH_v2(wild(), q, 1))
	want(t, invalid, c.CuMemcpy(8, q, 1)) // Go forbids such pointers
	want(t, invalid, c.CuMemcpy(q, 8, 1))
	ok(t, c.CuCtxSynchronize())
	ok(t, c.CuMemcpyHtoD_v2(q, pointer(uintptr(q+50)), 1)) // addressing is unified
	ok(t, c.CuMemcpyHtoD_v2(0, nil, 0))
	ok(t, c.CuMemsetD32_v2(q+1, 1, 0))
}

func TestSets(t *testing.T) {
	c := inContext(t, 0)
	q := linear(t, c, 24)
	got := make([]byte, 24)
	ok(t, c.CuMemsetD8_v2(q, 0xab, 24))
	ok(t, c.CuMemsetD16_v2(q+2, 0x1234, 3))
	ok(t, c.CuMemsetD32Async(q+12, 0xdeadbeef, 2, 0))
	ok(t, c.CuMemcpyDtoH_v2(at(got), q, 24))
	require.Equal(t, []byte{
		0xab, 0xab, 0x34, 0x12, 0x34, 0x12, 0x34, 0x12, 0xab, 0xab, 0xab, 0xab,
		0xef, 0xbe, 0xad, 0xde, 0xef, 0xbe, 0xad, 0xde, 0xab, 0xab, 0xab, 0xab,
	}, got)
	big, want := linear(t, c, 9*MiB), make([]byte, 9*MiB)
	for i := range want {
		want[i] = 7
	}
	ok(t, c.CuMemsetD8Async(big, 7, 9*MiB, sys.CU_STREAM_PER_THREAD))
	ok(t, c.CuStreamSynchronize(sys.CU_STREAM_PER_THREAD))
	got = make([]byte, 9*MiB)
	ok(t, c.CuMemcpyDtoH_v2(at(got), big, 9*MiB))
	require.Equal(t, want, got)
}

// cuMemcpy finds out itself what its addresses are.
func TestUnified(t *testing.T) {
	c := inContext(t, 0)
	q := linear(t, c, 100)
	pinned := hostMemory(t, c, 100)
	data, got := pattern(100, 2), make([]byte, 100)
	ok(t, c.CuMemcpy(addr(pinned), addr(data), 100))
	require.Equal(t, data, pinned)
	ok(t, c.CuMemcpy(q, addr(pinned), 100))
	ok(t, c.CuMemcpy(addr(got), q, 100))
	require.Equal(t, data, got)
	ok(t, c.CuMemsetD8_v2(addr(pinned), 9, 50)) // pinned memory is the device's too
	ok(t, c.CuMemcpyDtoD_v2(q, addr(pinned), 100))
	ok(t, c.CuMemcpyAsync(addr(got), q, 100, 0))
	require.Equal(t, append(data[:0:0], pinned...), got)
	require.EqualValues(t, 9, got[49])
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemsetD8_v2(addr(got), 9, 1))
}

func TestHostMemory(t *testing.T) {
	c := inContext(t, 0)
	b := hostMemory(t, c, 5000)
	p := new(sys.CUdeviceptr)
	ok(t, c.CuMemHostGetDevicePointer_v2(p, at(b), 0))
	require.Equal(t, addr(b), *p)
	invalid := sys.CUDA_ERROR_INVALID_VALUE
	want(t, invalid, c.CuMemFreeHost(at(b[1:])))
	ok(t, c.CuMemFreeHost(nil))
	want(t, invalid, c.CuMemHostAlloc(nil, 10, 0))
	require.Zero(t, addr(b)%4096)
}

func TestLinear(t *testing.T) {
	c := inContext(t, 0)
	before := freeMemory(t, c)
	q := linear(t, c, 100)
	require.Equal(t, before-linearUnit, freeMemory(t, c))
	base, size := new(sys.CUdeviceptr), new(uintptr)
	ok(t, c.CuMemGetAddressRange_v2(base, size, q+99))
	require.Equal(t, q, *base)
	require.EqualValues(t, 100, *size)
	ok(t, c.CuMemGetAddressRange_v2(nil, nil, q))
	want(t, sys.CUDA_ERROR_NOT_FOUND, c.CuMemGetAddressRange_v2(base, size, q+100))
	invalid := sys.CUDA_ERROR_INVALID_VALUE
	want(t, invalid, c.CuMemFree_v2(q+1))
	want(t, invalid, c.CuMemAlloc_v2(base, 0))
	want(t, sys.CUDA_ERROR_OUT_OF_MEMORY, c.CuMemAlloc_v2(base, testMemory+1))
	want(t, sys.CUDA_ERROR_OUT_OF_MEMORY, c.CuMemAlloc_v2(base, testMemory))
	v, _ := buffer(t, 2*MiB, 0)
	want(t, invalid, c.CuMemFree_v2(v)) // D16
	want(t, invalid, caller.CuMemUnmap(q, 100))
	want(t, invalid, caller.CuMemAddressFree(q, linearUnit))
	var h sys.CUmemGenericAllocationHandle
	want(t, invalid, caller.CuMemRetainAllocationHandle(&h, uintptr(q)))
	p := new(sys.CUdeviceptr)
	ok(t, c.CuMemAlloc_v2(p, 3))
	ok(t, c.CuMemFree_v2(*p))
	want(t, invalid, c.CuMemFree_v2(*p))
}

// Memory of cuMemAlloc can be copied to and from in every device's context.
func TestBetweenDevices(t *testing.T) {
	c0, c1 := inContext(t, 0), inContext(t, 1)
	a, b := linear(t, c0, 100), linear(t, c1, 100)
	data, got := pattern(100, 1), make([]byte, 100)
	ok(t, c0.CuMemcpyHtoD_v2(a, at(data), 100))
	ok(t, c1.CuMemcpyDtoD_v2(b, a, 100))
	ok(t, c1.CuMemcpyDtoH_v2(at(got), b, 100))
	require.Equal(t, data, got)
}
