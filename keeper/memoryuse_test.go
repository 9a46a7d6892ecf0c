package keeper

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/state"
)

// Holders are processes: one with two parts counts once, and those without a pid here each.
func TestPIDs(t *testing.T) {
	h := func(pid int32, process uint64, part int) api.Holder {
		return api.Holder{Who: state.Who{PID: pid, UID: 7}, Process: process, Part: part}
	}
	for want, holders := range map[string][]api.Holder{
		"":             nil,
		"PID 3, PID 4": {h(3, 1, 0), h(4, 2, 0), h(3, 1, 1), h(3, 9, 2)},
		"PID 3, a process in another PID namespace": {h(3, 1, 0), h(0, 2, 0), h(0, 2, 1)},
		"3 processes in other PID namespaces":       {h(0, 1, 0), h(0, 2, 0), h(0, 0, 1)},
	} {
		require.Equal(t, want, PIDs(holders))
	}
	require.Len(t, api.Processes([]api.Holder{h(3, 1, 0), h(3, 1, 1), h(0, 5, 0), h(0, 5, 1), h(0, 6, 0)}), 3)
}

// A refusal names the three uses that have most, and counts the others.
func TestRefusalNamesTheLargest(t *testing.T) {
	var uses []Use
	for i := range 18 {
		uses = append(uses, Use{Name: string(rune('a' + i)), Version: 1, Current: true, Bytes: uint64(i + 1)})
	}
	text := inTheWay(uses)
	require.Regexp(t, `^; r, version 1, has 18 bytes .*; q, .*; p, version 1, has 16 bytes there, .*; and 15 more, with 120 bytes$`, text)
	require.NotContains(t, inTheWay(uses[:3]), "more")
	require.Empty(t, inTheWay(nil))
}
