package cu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// D20: the attribute says yes without an IMEX channel, so it is tried; and no
// answer is given where trying fails otherwise.
func TestSupportsFabricIsTried(t *testing.T) {
	s, drv := spied(t)
	dev := firstDevice(t, drv)
	for r, want := range map[sys.CUresult]bool{sys.CUDA_ERROR_NOT_PERMITTED: false, sys.CUDA_ERROR_NOT_SUPPORTED: false} {
		s.always("cuMemCreate", r)
		yes, err := dev.SupportsFabric()
		require.NoError(t, err)
		require.Equal(t, want, yes)
	}
	s.always("cuMemCreate", sys.CUDA_ERROR_OUT_OF_MEMORY)
	_, err := dev.SupportsFabric()
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
	s.answer("cuMemCreate", nil)
	_, err = dev.SupportsFabric()
	require.NoError(t, err)
}

// FAULTS 45: each call says what is missing.
func TestFault45_FabricHandlesWithoutIMEX(t *testing.T) {
	dev := cutest.Device(t)
	if yes, err := dev.SupportsFabric(); err != nil || yes {
		require.NoError(t, err)
		t.Skip("there is an IMEX channel here")
	}
	m, err := dev.CreateMemory(granularity(t, dev), cu.HandleFD)
	require.NoError(t, err)
	_, err = m.ExportFabric()
	require.ErrorIs(t, err, cu.ErrInvalidValue, "it was not made for that")
	_, err = dev.Driver().ImportFabric(cu.FabricHandle{}, m.Size())
	require.Error(t, err)
	require.ErrorContains(t, err, "IMEX channel")
	require.NoError(t, m.Close())
	_, err = m.ExportFabric()
	require.ErrorIs(t, err, cu.ErrClosed)
}
