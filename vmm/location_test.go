package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/vmm"
)

// Memory of the host's NUMA node 0 is not device 0's.
func TestImportOfHostMemoryIsRefused(t *testing.T) {
	faults := cutest.NewFaults(t)
	faults.Hook("cuMemGetAllocationPropertiesFromHandle", func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		r := next()
		if r == sys.CUDA_SUCCESS {
			storeLocation(call.Arg(0), sys.CU_MEM_LOCATION_TYPE_HOST_NUMA)
		}
		return r
	})
	dev := cutest.Device(t, faults.Option())
	m := ok(dev.CreateMemory(granularity(t, dev), cu.HandleFD))(t)
	require.Equal(t, -1, ok(m.DeviceID())(t))
	require.NoError(t, m.Close())

	buf, d := exported(t, dev)
	_, files := export(t, buf)
	_, err := vmm.Import(dev, d, files)
	closeFiles(t, files)
	var bad *vmm.DescriptorError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, "device", bad.Field)
	require.ErrorContains(t, err, "host NUMA node 0")
}
