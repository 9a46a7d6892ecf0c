package cu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/sys"
)

// The values of package gpumem, which knows no driver, are the driver's.
func TestValuesAreTheDrivers(t *testing.T) {
	require.Equal(t, uint32(sys.CU_MEM_ACCESS_FLAGS_PROT_NONE), uint32(cu.NoAccess))
	require.Equal(t, uint32(sys.CU_MEM_ACCESS_FLAGS_PROT_READ), uint32(cu.ReadOnly))
	require.Equal(t, uint32(sys.CU_MEM_ACCESS_FLAGS_PROT_READWRITE), uint32(cu.ReadWrite))
	require.Len(t, cu.IPCHandle{}, len(sys.CUipcMemHandle{}.Reserved))
	require.Len(t, cu.FabricHandle{}, len(sys.CUmemFabricHandle{}.Data))
}
