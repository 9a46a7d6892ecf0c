package vmm_test

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// failEach runs f with its first driver call failed, then its second, and so
// on until it gets through, and wants nothing to be left each time (invariant
// 4). It returns what was failed.
func failEach(t *testing.T, b *books, ctx *cu.Context, f func() (io.Closer, error)) (hits []string) {
	t.Helper()
	free, owed := freeMemory(t, ctx), b.owed()
	for n := 1; ; n++ {
		b.failNth(n)
		made, err := f()
		hit := b.hit()
		b.failNth(0)
		if hit == "" {
			require.NoError(t, err)
			require.NoError(t, made.Close())
			return hits
		}
		require.ErrorIs(t, err, cu.ErrOutOfMemory, "%s", hit)
		require.ErrorContains(t, err, hit)
		require.Equal(t, owed, b.owed(), hit)
		require.Equal(t, free, freeMemory(t, ctx), hit)
		hits = append(hits, hit)
	}
}

func TestFailedNewLeavesNothing(t *testing.T) {
	b, dev, ctx, g := tidy(t)
	hits := failEach(t, b, ctx, func() (io.Closer, error) { return vmm.New(dev, 2*g, vmm.WithChunkSize(g)) })
	require.Equal(t, []string{
		"cuMemCreate", "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemMap", "cuMemSetAccess",
	}, hits)
}

// inReservation returns a buffer in r and r as one thing to close. If err is not nil it closes r.
func inReservation(r *vmm.Reservation, buf *vmm.Buffer, err error) (io.Closer, error) {
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return closers{buf, r}, nil
}

// closers are closed in their order.
type closers []io.Closer

func (all closers) Close() (err error) {
	for _, c := range all {
		err = errors.Join(err, c.Close())
	}
	return err
}

// Nothing is left in the reservation, whatever fails.
func TestFailedNewInAReservationLeavesNothing(t *testing.T) {
	b, dev, ctx, g := tidy(t)
	hits := failEach(t, b, ctx, func() (io.Closer, error) {
		r, err := vmm.Reserve(dev.Driver(), 2*g)
		if err != nil {
			return nil, err
		}
		buf, err := vmm.New(dev, 2*g, vmm.WithChunkSize(g), vmm.WithReservation(r))
		return inReservation(r, buf, err)
	})
	require.Equal(t, []string{
		"cuMemAddressReserve", "cuMemCreate", "cuMemCreate", "cuMemMap", "cuMemMap", "cuMemSetAccess",
	}, hits)
}

func TestFailedImportInAReservationLeavesNothing(t *testing.T) {
	b, dev, ctx, g := tidy(t)
	buf := newBuffer(t, dev, g)
	loan := ok(buf.Lend())(t) // the driver is asked now, and not again
	require.NoError(t, loan.Close())
	hits := failEach(t, b, ctx, func() (io.Closer, error) {
		r, err := vmm.Reserve(dev.Driver(), g)
		if err != nil {
			return nil, err
		}
		d, files := export(t, buf)
		imported, err := vmm.Import(dev, d, files, vmm.WithReservation(r))
		closeFiles(t, files)
		return inReservation(r, imported, err)
	})
	require.Equal(t, []string{
		"cuMemAddressReserve", "cuMemImportFromShareableHandle", "cuMemGetAllocationPropertiesFromHandle",
		"cuMemMap", "cuMemSetAccess",
	}, hits)
}

func TestFailedImportLeavesNothing(t *testing.T) {
	b, dev, ctx, g := tidy(t)
	buf := newBuffer(t, dev, 2*g, vmm.WithChunkSize(g))
	d, files, err := buf.Export() // the driver is asked now, and not again
	require.NoError(t, err)
	require.NoError(t, files[0].Close())
	require.NoError(t, files[1].Close())
	hits := failEach(t, b, ctx, func() (io.Closer, error) {
		_, files := export(t, buf)
		imported, err := vmm.Import(dev, d, files)
		closeFiles(t, files)
		return imported, err
	})
	require.Equal(t, []string{
		"cuMemImportFromShareableHandle", "cuMemGetAllocationPropertiesFromHandle",
		"cuMemImportFromShareableHandle", "cuMemGetAllocationPropertiesFromHandle",
		"cuMemAddressReserve", "cuMemMap", "cuMemMap", "cuMemSetAccess",
	}, hits)
}

func TestFailedViewLeavesNothing(t *testing.T) {
	b, dev, ctx, g := tidy(t)
	buf := newBuffer(t, dev, 2*g, vmm.WithChunkSize(g))
	hits := failEach(t, b, ctx, func() (io.Closer, error) { return buf.NewView(cu.ReadOnly) })
	require.Equal(t, []string{"cuMemAddressReserve", "cuMemMap", "cuMemMap", "cuMemSetAccess"}, hits)
}

func TestFailedExportHandsOutNothing(t *testing.T) {
	b, dev, _, g := tidy(t)
	buf := newBuffer(t, dev, 3*g, vmm.WithChunkSize(g))
	b.FailNth("cuMemExportToShareableHandle", 3, cu.ErrOutOfMemory)
	loan, err := buf.Lend()
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
	require.Nil(t, loan)
	b.FailNth("cuMemExportToShareableHandle", 1, cu.ErrOutOfMemory)
	_, files, err := buf.Export()
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
	require.Empty(t, files)
	_, files = export(t, buf)
	closeFiles(t, files)
	require.Equal(t, 3, b.count("cuMemExportToShareableHandle"), "what was exported is remembered")
}
