package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
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

// A fault makes happen now what hardware does once a year.
func TestTableOnAFullDevice(t *testing.T) {
	faults := cutest.NewFaults(t)
	faults.Fail("cuMemCreate", cu.ErrOutOfMemory)
	dev := cutest.Device(t, faults.Option())
	_, err := newTable(dev, cutest.Context(t, dev), 100)
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
}
