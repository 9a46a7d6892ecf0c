package soft

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
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

// Memory that is not there when a copy takes its bytes, or where Go forbids pointers, is
// refused, and no context is lost.
func TestWildAddresses(t *testing.T) {
	c := inContext(t, 0)
	q := linear(t, c, 100)
	for _, r := range []sys.CUresult{c.CuMemcpyHtoDAsync_v2(q, wild(), 1, 0), c.CuMemcpy(8, q, 1), c.CuMemcpy(q, 8, 1)} {
		want(t, sys.CUDA_ERROR_INVALID_VALUE, r)
	}
	ok(t, c.CuCtxSynchronize())
}
