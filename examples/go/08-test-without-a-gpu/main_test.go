package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// Main gives the tests a software driver of their own, and fails them if they
// leave anything behind: memory, handles, descriptors, goroutines.
func TestMain(m *testing.M) { cutest.Main(m) }

func TestTable(t *testing.T) {
	dev := cutest.Device(t) // of the software driver, or of libcuda with GPUFD_DRIVER=cuda
	tab, err := newTable(dev, cutest.Context(t, dev), 100)
	require.NoError(t, err)
	for i := range 100 {
		require.NoError(t, tab.set(i, row{uint32(i)}))
	}
	for _, i := range []int{0, 42, 99} {
		r, err := tab.get(i)
		require.NoError(t, err)
		require.Equal(t, row{uint32(i)}, r)
	}
	_, err = tab.get(100)
	require.ErrorContains(t, err, "row 100 of a table of 100")
	require.NoError(t, tab.Close())
}

// What hardware does once a year a hook does at once.
func TestTableOnAFullDevice(t *testing.T) {
	full := func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		if call.Symbol() == "cuMemCreate" {
			return sys.CUDA_ERROR_OUT_OF_MEMORY
		}
		return next()
	}
	dev, err := cutest.Driver(t, cu.WithHook(full)).Device(0)
	require.NoError(t, err)
	_, err = newTable(dev, cutest.Context(t, dev), 100)
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
}
