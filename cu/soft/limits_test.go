package soft

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

func TestP2PAttributes(t *testing.T) {
	c := initialised(t)
	v := new(int32)
	for a, yes := range map[sys.CUdevice_P2PAttribute]int32{1: 0, 2: 1, 3: 0, 4: 0, 5: 0} {
		ok(t, c.CuDeviceGetP2PAttribute(v, a, 0, 1))
		require.Equal(t, yes, *v, a)
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetP2PAttribute(v, 0, 0, 1))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetP2PAttribute(v, 6, 0, 1))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetP2PAttribute(nil, 2, 0, 0))
	want(t, sys.CUDA_ERROR_INVALID_DEVICE, c.CuDeviceGetP2PAttribute(v, 2, 0, 0))
	want(t, sys.CUDA_ERROR_INVALID_DEVICE, c.CuDeviceGetP2PAttribute(v, 2, 0, 7))
	for _, kind := range []sys.CUexecAffinityType{0, 1, 2} {
		*v = 7
		ok(t, c.CuDeviceGetExecAffinitySupport(v, kind, 0))
		require.Zero(t, *v)
	}
	prop := new(sys.CUdevprop)
	ok(t, c.CuDeviceGetProperties(prop, 0))
	require.Equal(t, [3]int32{1024, 1024, 64}, prop.MaxThreadsDim)
	require.EqualValues(t, 32, prop.SIMDWidth)
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetProperties(nil, 0))
}
