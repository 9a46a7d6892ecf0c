package vmm_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// A room is a reservation of four granules, and an allocation of one.
func room(t *testing.T) (b *books, ctx *cu.Context, g uint64, r *vmm.Reservation, a *vmm.Allocation) {
	t.Helper()
	b, dev := bookkept(t)
	ctx = leavesNothing(t, b, dev)
	g = granularity(t, dev)
	r = ok(vmm.Reserve(dev.Driver(), 4*g))(t)
	require.Equal(t, 4*g, r.Size())
	require.Zero(t, uint64(r.Ptr())%g)
	a = ok(vmm.Create(dev, g))(t)
	require.Equal(t, g, a.Size())
	require.Same(t, dev, a.Device())
	t.Cleanup(func() {
		require.NoError(t, a.Close())
		require.NoError(t, r.Close())
	})
	return b, ctx, g, r, a
}

func TestMappingCanBeUsedOnceItHasAccess(t *testing.T) {
	_, ctx, g, r, a := room(t)
	m := ok(r.Map(g, a))(t)
	require.Equal(t, r.Ptr().Add(g), m.Ptr())
	require.Equal(t, g, m.Size())
	require.ErrorIs(t, cu.CopyToDevice(ctx, m.Ptr(), make([]byte, 8)), cu.ErrInvalidValue, "D5")
	require.NoError(t, m.SetAccess(cu.ReadWrite))
	write(t, ctx, m.Ptr(), noise(g, 1))
	require.NoError(t, m.SetAccess(cu.ReadOnly, a.Device()))
	require.ErrorIs(t, cu.CopyToDevice(ctx, m.Ptr(), make([]byte, 8)), cu.ErrInvalidValue)
	require.True(t, string(noise(g, 1)) == string(read(t, ctx, m.Ptr(), g)))
	require.NoError(t, m.Close())
}

// D3 and D4 of docs/driver-facts.md: what the driver lets pass, or punishes, is caught here.
func TestMappingErrors(t *testing.T) {
	b, _, g, r, a := room(t)
	m := ok(r.Map(0, a))(t)
	mapped := b.count("cuMemMap")
	for _, c := range []struct {
		offset uint64
		want   error
	}{
		{0, vmm.ErrOccupied}, {4 * g, vmm.ErrOccupied}, {4*g + 1, vmm.ErrOccupied}, {3*g + 1, vmm.ErrOccupied},
		{^uint64(0), vmm.ErrOccupied}, {^uint64(0) - g + 1, vmm.ErrOccupied},
	} {
		require.ErrorIs(t, errOf(r.Map(c.offset, a)), c.want, "offset %d", c.offset)
	}
	_, err := r.Map(g/2, a) // overlaps, and is not aligned
	require.Error(t, err)
	require.Equal(t, mapped, b.count("cuMemMap"))
	require.NoError(t, m.Close())
}

func TestOverlapIsRefused(t *testing.T) {
	b, _, g, r, a := room(t)
	big := ok(vmm.Create(a.Device(), 2*g))(t)
	m := ok(r.Map(g, big))(t)
	require.ErrorIs(t, errOf(r.Map(2*g, a)), cu.ErrInvalidValue)
	require.ErrorIs(t, errOf(r.Map(0, big)), cu.ErrInvalidValue)
	require.Equal(t, 1, b.count("cuMemMap"))
	require.NoError(t, m.Close())
	require.NoError(t, big.Close())
}

func TestReservationStaysWhileSomethingIsMapped(t *testing.T) {
	b, ctx, g, r, a := room(t)
	m := ok(r.Map(2*g, a))(t)
	require.NoError(t, m.SetAccess(cu.ReadWrite))
	require.ErrorIs(t, r.Close(), vmm.ErrMapped)
	require.Zero(t, b.count("cuMemAddressFree"))
	write(t, ctx, m.Ptr(), noise(g, 2))
	require.NoError(t, m.Close())
	again, err := r.Map(2*g, a)
	require.NoError(t, err, "the range is free again")
	require.NoError(t, again.Close())
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	require.Equal(t, 1, b.count("cuMemAddressFree"))
	require.ErrorIs(t, errOf(r.Map(0, a)), cu.ErrClosed)
}

// D4: the driver calls a second unmap a success.
func TestMappingIsUnmappedOnce(t *testing.T) {
	b, _, _, r, a := room(t)
	m := ok(r.Map(0, a))(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, b.count("cuMemUnmap"))
	require.ErrorIs(t, m.SetAccess(cu.ReadOnly), cu.ErrClosed)
}

// D12, FAULTS 12.
func TestFault12_MappingOutlivesItsAllocation(t *testing.T) {
	_, ctx, g, r, a := room(t)
	m := ok(r.Map(0, a))(t)
	require.NoError(t, m.SetAccess(cu.ReadWrite))
	want := noise(g, 3)
	write(t, ctx, m.Ptr(), want)
	require.NoError(t, a.Close())
	require.True(t, string(want) == string(read(t, ctx, m.Ptr(), g)))
	require.ErrorIs(t, errOf(r.Map(g, a)), cu.ErrClosed)
	require.Error(t, errOf(a.Export()))
	require.NoError(t, m.Close())
}

// Invariant 3: address space is not lost with its reservation, whichever of
// the two is lost or closed first.
func TestLostReservationIsFreed(t *testing.T) {
	b, _, g, _, a := room(t)
	freed := func(n int) func() bool { return func() bool { return b.count("cuMemAddressFree") == n } }
	func() {
		require.NoError(t, errOf(vmm.Reserve(a.Device().Driver(), g)))
	}()
	eventuallyCollected(t, freed(1))

	m := func() *vmm.Mapping {
		r := ok(vmm.Reserve(a.Device().Driver(), g))(t)
		return ok(r.Map(0, a))(t)
	}()
	for range 3 {
		eventuallyCollected(t, freed(1))
	}
	require.NoError(t, m.Close())
	eventuallyCollected(t, freed(2))
}
