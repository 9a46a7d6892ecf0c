package soft

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

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
