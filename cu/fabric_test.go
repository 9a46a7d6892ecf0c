package cu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// D20 of docs/driver-facts.md: the attribute says yes without an IMEX channel, so it is tried; and no
// answer is given where trying fails otherwise.
func TestSupportsFabricIsTried(t *testing.T) {
	faults := cutest.NewFaults(t)
	dev := cutest.Device(t, faults.Option())
	for _, r := range []cu.Result{cu.ErrNotPermitted, cu.ErrNotSupported} {
		refused := faults.Fail("cuMemCreate", r)
		require.False(t, ok(dev.SupportsFabric())(t))
		refused.Stop()
	}
	full := faults.Fail("cuMemCreate", cu.ErrOutOfMemory)
	require.ErrorIs(t, errOf(dev.SupportsFabric()), cu.ErrOutOfMemory)
	full.Stop()
	require.NoError(t, errOf(dev.SupportsFabric()))
}

// FAULTS 45: each call says what is missing.
func TestFault45_FabricHandlesWithoutIMEX(t *testing.T) {
	dev := cutest.Device(t)
	if yes, err := dev.SupportsFabric(); err != nil || yes {
		require.NoError(t, err)
		t.Skip("there is an IMEX channel here")
	}
	m := ok(dev.CreateMemory(granularity(t, dev), cu.HandleFD))(t)
	require.ErrorIs(t, errOf(m.ExportFabric()), cu.ErrInvalidValue, "it was not made for that")
	_, err := dev.Driver().ImportFabric(cu.FabricHandle{}, m.Size())
	require.Error(t, err)
	require.ErrorContains(t, err, "IMEX channel")
	require.NoError(t, m.Close())
	require.ErrorIs(t, errOf(m.ExportFabric()), cu.ErrClosed)
}
