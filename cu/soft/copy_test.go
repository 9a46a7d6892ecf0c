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
