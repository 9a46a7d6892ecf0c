package share

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/wire"
)

// Constants that documentation shows with their values are those of the wire.
func TestConstantsAreThoseOfTheWire(t *testing.T) {
	require.Equal(t, wire.Version, Version)
	for here, there := range map[HandleType]HandleType{HandleFD: wire.HandleFD, HandleLegacy: wire.HandleLegacy} {
		require.Equal(t, there, here)
	}
	for here, there := range map[RefusalCode]RefusalCode{
		RefusedName:        wire.RefusedName,
		RefusedAccess:      wire.RefusedAccess,
		RefusedKind:        wire.RefusedKind,
		RefusedBusy:        wire.RefusedBusy,
		RefusedVersion:     wire.RefusedVersion,
		RefusedRecord:      wire.RefusedRecord,
		RefusedTimeout:     wire.RefusedTimeout,
		RefusedPolicy:      wire.RefusedPolicy,
		RefusedRate:        wire.RefusedRate,
		RefusedUnsupported: wire.RefusedUnsupported,
		RefusedStale:       wire.RefusedStale,
		RefusedParts:       wire.RefusedParts,
	} {
		require.Equal(t, there, here)
	}
}
