package cu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Properties survive the way into C's struct and back.
func TestMemPropertiesToCAndBack(t *testing.T) {
	for _, p := range []MemProperties{
		{Type: AllocationPinned, Location: Location{LocationDevice, 3}},
		{Type: 7, Location: HostNUMALocation(2), HandleTypes: HandleFD | HandleFabric},
		{Type: AllocationPinned, Location: HostLocation(), Compressible: true},
		{Type: AllocationPinned, GPUDirectRDMA: true},
		{Type: AllocationPinned, Usage: UsageTilePool | UsageHWDecompress},
	} {
		require.Equal(t, p, propertiesOf(p.raw()))
	}
	require.Equal(t, AllocationPinned, propertiesOf(MemProperties{}.raw()).Type)
}
