package cu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Devices whose UUIDs begin alike, which no test machine can be asked for.
func TestPrefixHasToFitOneDeviceOnly(t *testing.T) {
	drv := &Driver{devices: []*Device{
		{ordinal: 0, name: "a", uuid: UUID{0x12, 0x34, 0x56}},
		{ordinal: 1, name: "b", uuid: UUID{0x12, 0x34, 0x78}},
		{ordinal: 2, name: "c", uuid: UUID{0xab, 0xcd}},
	}}
	for name, want := range map[string]int{
		"GPU-123456": 0, "GPU-123478": 1, "gpu-a": 2, "GPU-ABCD0000-0000": 2, "MIG-abcd": 2, "mig-12347": 1, "1": 1,
	} {
		dev, err := drv.FindDevice(name)
		require.NoError(t, err, name)
		require.Equal(t, want, dev.Ordinal(), name)
	}
	for _, name := range []string{"GPU-1", "GPU-1234", "MIG-1234"} {
		_, err := drv.FindDevice(name)
		require.ErrorContains(t, err, "ambiguous", name)
		require.ErrorContains(t, err, "0: a (GPU-123456")
		require.ErrorContains(t, err, "1: b (GPU-123478")
	}
	for _, name := range []string{"GPU-", "MIG-", "G", "3", "GPU-ac"} {
		var none *NoDeviceError
		_, err := drv.FindDevice(name)
		require.ErrorAs(t, err, &none, name)
		require.Len(t, none.Have, 3)
	}
}
