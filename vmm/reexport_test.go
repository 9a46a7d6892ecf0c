package vmm_test

import (
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/vmm"
)

// Memory goes on from one importer to the next, as it was, also when those before are
// closed. The driver is asked for descriptors by its owner alone.
func TestImportedMemoryGoesOn(t *testing.T) {
	b, dev, ctx, _ := tidy(t)
	first, d := exported(t, dev)
	write(t, ctx, first.Ptr(), noise(d.Size, 1))
	before := first
	for range 3 {
		open := cutest.Descriptors()
		next := importFrom(t, dev, before, vmm.WithReexport())
		require.NoError(t, before.Close())
		require.Equal(t, d, next.Describe())
		require.True(t, string(noise(d.Size, 1)) == string(read(t, ctx, next.Ptr(), d.Size)))
		require.ErrorIs(t, next.Grow(4*d.ChunkSize), vmm.ErrCapacity)
		if before != first {
			require.Equal(t, open, cutest.Descriptors(), "as many descriptors as the one before had")
		}
		before = next
	}
	part, files, err := before.ExportRange(d.ChunkSize, d.ChunkSize)
	require.NoError(t, err)
	require.Equal(t, 1, part.Chunks)
	closeFiles(t, files)
	require.Equal(t, d.Chunks, b.count("cuMemExportToShareableHandle"))
	require.NoError(t, before.Close())
	require.ErrorIs(t, errOf(before.Lend()), cu.ErrClosed)
}

// A loan of imported memory gives on no more than the importer has.
func TestLoanSaysHowMuchMayBeGivenOn(t *testing.T) {
	_, dev, _, _ := tidy(t)
	buf, _ := exported(t, dev)
	lends := func(buf *vmm.Buffer, most cu.Access) {
		loan := ok(buf.Lend())(t)
		require.Equal(t, most, loan.Access)
		require.ErrorIs(t, buf.Close(), vmm.ErrInUse)
		require.NoError(t, loan.Close())
		require.NoError(t, buf.Close())
	}
	lends(importFrom(t, dev, buf, vmm.WithReexport()), cu.ReadOnly)
	lends(importFrom(t, dev, buf, vmm.WithReexport(), vmm.WithAccess(cu.ReadWrite)), cu.ReadWrite)
	lends(buf, cu.ReadWrite)
}

// The next process gets from an importer what the owner would have given it.
func TestChildGetsImportedMemory(t *testing.T) {
	_, dev, ctx, _ := tidy(t)
	buf, d := exported(t, dev)
	write(t, ctx, buf.Ptr(), noise(d.Size, 1))
	got := importFrom(t, dev, buf, vmm.WithReexport(), vmm.WithAccess(cu.ReadWrite))
	require.NoError(t, buf.Close())
	runChild(t, got, "reads and writes", "")
	require.True(t, string(noise(d.Size, 2)) == string(read(t, ctx, got.Ptr(), d.Size)))
	require.NoError(t, got.Close())
}

func TestFailedImportWithReexportLeavesNothing(t *testing.T) {
	b, dev, ctx, _ := tidy(t)
	buf, d := exported(t, dev)
	loan := ok(buf.Lend())(t) // the driver is asked now, and not again
	require.NoError(t, loan.Close())
	hits := failEach(t, b, ctx, func() (io.Closer, error) {
		_, files := export(t, buf)
		got, err := vmm.Import(dev, d, files, vmm.WithReexport())
		closeFiles(t, files)
		return got, err
	})
	require.Len(t, hits, 2*d.Chunks+1+d.Chunks+1)

	_, files := export(t, buf)
	d.ChunkSize *= 2 // a lie that is found out when all is imported
	d.Size, d.Granularity = 3*d.ChunkSize, d.ChunkSize
	_, err := vmm.Import(dev, d, files, vmm.WithReexport())
	require.True(t, isSizeLie(err), "%v", err)
	closeFiles(t, files)
}

// A descriptor that cannot be duplicated is a failed import.
func TestDescriptorThatCannotBeKept(t *testing.T) {
	var files []*os.File
	checked := 0
	b := newBooks(t)
	dev := cutest.Device(t, cu.WithHook(b.hook), cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		r := next()
		if call.Symbol() == "cuMemGetAllocationPropertiesFromHandle" {
			if checked++; checked == 2 { // the next thing is to keep it
				_ = files[1].Close()
			}
		}
		return r
	}))
	leavesNothing(t, b, dev)
	buf, d := exported(t, dev)
	var err error
	_, files = export(t, buf)
	owed := b.owed()
	got, err := vmm.Import(dev, d, files, vmm.WithReexport())
	require.Nil(t, got)
	require.ErrorContains(t, err, "importing chunk 2 of 3: duplicating a memory descriptor")
	require.Equal(t, owed, b.owed())
	for _, i := range []int{0, 2} {
		require.NoError(t, files[i].Close())
	}
}

// Fabric handles are no descriptors, and there is nothing to be kept.
func TestNoReexportOfFabricMemory(t *testing.T) {
	_, dev, _, _ := tidy(t)
	r := ok(vmm.Reserve(dev.Driver(), granularity(t, dev)))(t)
	buf := newBuffer(t, dev, 1)
	require.ErrorIs(t, errOf(vmm.ImportFabric(dev, buf.Describe(), make([]cu.FabricHandle, 1), vmm.WithReexport(), vmm.WithReservation(r))), vmm.ErrNotShareable)
	require.NoError(t, r.Close())
}
