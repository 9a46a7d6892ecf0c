package vmm_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// Invariant 3, FAULTS 71: any size, in any number of chunks, holds what is
// copied there, to the last byte and across the borders of chunks.
func TestFault71_BufferOfAnySizeHoldsItsData(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	for _, c := range []struct {
		size, chunk uint64
		chunks      int
	}{
		{1, 0, 1}, {g - 1, 0, 1}, {g, 0, 1}, {g + 1, 0, 1}, {3*g + 5, 0, 1},
		{1, 1, 1}, {g, g, 1}, {g + 1, g, 2}, {3 * g, 1, 3}, {3*g + 5, 2 * g, 2}, {3 * g, g + 1, 2},
	} {
		buf := ok(vmm.New(dev, c.size, vmm.WithChunkSize(c.chunk)))(t)
		d := buf.Describe()
		require.Equal(t, c.chunks, d.Chunks, "%+v", c)
		require.Equal(t, c.size, buf.Size())
		require.Equal(t, uint64(d.Chunks)*d.ChunkSize, buf.Mapped())
		require.GreaterOrEqual(t, buf.Mapped(), c.size)
		require.Zero(t, d.ChunkSize%g)
		require.Equal(t, cu.ReadWrite, buf.Access())
		require.Same(t, dev, buf.Device())
		require.Equal(t, vmm.Descriptor{Kind: cutest.Kind(), Device: dev.UUID(), Size: c.size,
			ChunkSize: d.ChunkSize, Chunks: c.chunks, Granularity: g, Generation: d.Generation}, d)

		require.Equal(t, make([]byte, c.size), read(t, ctx, buf.Ptr(), c.size), "D9")
		want := noise(buf.Mapped(), int(c.size))
		write(t, ctx, buf.Ptr(), want)
		require.True(t, string(want) == string(read(t, ctx, buf.Ptr(), buf.Mapped())), "%+v", c)
		require.NoError(t, buf.Close())
	}
}

// Copies and fills that end, begin or lie across the border of two chunks, in the
// mapping that wrote them, in another of the same memory, and in an import.
func TestFault71_AcrossTheBorderOfTwoChunks(t *testing.T) {
	_, dev, ctx, _ := tidy(t)
	buf, d := exported(t, dev)
	view := ok(buf.NewView(cu.ReadOnly))(t)
	imported := importFrom(t, dev, buf)
	g := d.ChunkSize
	want := noise(3*g-1, 4)
	write(t, ctx, buf.Ptr(), want)
	for _, border := range []uint64{g, 2 * g} {
		for before := range uint64(4) {
			for size := range uint64(8) {
				at := border - before
				bytes := noise(size, int(at))
				copy(want[at:], bytes)
				write(t, ctx, buf.Ptr().Add(at), bytes)
			}
		}
		require.NoError(t, cu.Fill(ctx, buf.Ptr().Add(border-65), uint8(0x5a), 130))
		require.NoError(t, ctx.Synchronize(t.Context()))
		for i := border - 65; i < border+65; i++ {
			want[i] = 0x5a
		}
	}
	for _, p := range []cu.DevicePtr{buf.Ptr(), view.Ptr(), imported.Ptr()} {
		require.True(t, string(want) == string(read(t, ctx, p, 3*g-1)))
		require.Equal(t, want[g-3:g+4], read(t, ctx, p.Add(g-3), 7))
		require.Equal(t, want[g-1:2*g+1], read(t, ctx, p.Add(g-1), g+2), "a chunk and a byte on each side")
	}
	require.NoError(t, imported.Close())
	require.NoError(t, view.Close())
}

func TestBadSizesAreRefusedBeforeAnythingIsMade(t *testing.T) {
	b, dev, _, g := tidy(t)
	for _, c := range []struct{ size, chunk, capacity uint64 }{
		{0, 0, 0}, {0, g, 0},
		{math.MaxUint64, 0, 0}, {math.MaxUint64, g, 0}, {1, math.MaxUint64, 0}, {1, 0, math.MaxUint64},
		{vmm.MaxChunks*g + 1, g, 0}, // one chunk too many
		{math.MaxUint64 - g, 1 << 63, 0},
	} {
		require.ErrorIs(t, errOf(vmm.New(dev, c.size, vmm.WithChunkSize(c.chunk), vmm.WithCapacity(c.capacity))), vmm.ErrSize, "%+v", c)
	}
	require.Zero(t, b.count("cuMemCreate"))
	require.Zero(t, b.count("cuMemAddressReserve"))
}

// FAULTS 61.
func TestFault61_TooLargeForTheDeviceLeavesNothing(t *testing.T) {
	_, dev, _, _ := tidy(t)
	_, err := vmm.New(dev, 4<<40) // D15 of docs/driver-facts.md
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
	require.ErrorContains(t, err, "creating 4398046511104 bytes on device 0: ")
}

func TestAlignUp(t *testing.T) {
	for _, c := range []struct {
		size, granularity, want uint64
		ok                      bool
	}{
		{0, 8, 0, true}, {1, 8, 8, true}, {8, 8, 8, true}, {9, 8, 16, true}, {7, 1, 7, true}, {10, 6, 12, true},
		{math.MaxUint64, 8, 0, false}, {math.MaxUint64 - 7, 8, math.MaxUint64 - 7, true}, {1, 0, 0, false},
	} {
		got, ok := vmm.AlignUp(c.size, c.granularity)
		require.Equal(t, c.ok, ok, "%+v", c)
		if ok {
			require.Equal(t, c.want, got)
		}
	}
}

// FAULTS 11: close twice; use after close.
func TestFault11_ClosedBufferIsClosed(t *testing.T) {
	b, dev, _, g := tidy(t)
	buf := ok(vmm.New(dev, 2*g, vmm.WithChunkSize(g), vmm.WithCapacity(4*g)))(t)
	_, files := export(t, buf)
	closeFiles(t, files)
	for range 3 {
		require.NoError(t, buf.Close())
	}
	require.NoError(t, (*vmm.Buffer)(nil).Close())
	require.NoError(t, (*vmm.View)(nil).Close())
	require.NoError(t, (*vmm.Mapping)(nil).Close())
	require.NoError(t, (*vmm.Reservation)(nil).Close())
	require.NoError(t, (*vmm.Allocation)(nil).Close())

	require.ErrorIs(t, buf.Grow(3*g), cu.ErrClosed)
	require.ErrorIs(t, errOf(buf.NewView(cu.ReadOnly)), cu.ErrClosed)
	_, _, err := buf.Export()
	require.ErrorIs(t, err, cu.ErrClosed)
	require.Equal(t, 2, b.count("cuMemRelease"))
}

// A Close that the driver refused can be tried again.
func TestFailedCloseCanBeTriedAgain(t *testing.T) {
	for _, symbol := range []string{"cuMemUnmap", "cuMemAddressFree"} {
		t.Run(symbol, func(t *testing.T) {
			b, dev, _, g := tidy(t)
			buf := ok(vmm.New(dev, 3*g, vmm.WithChunkSize(g)))(t)
			b.FailNth(symbol, 1, cu.ErrOutOfMemory)
			require.ErrorIs(t, buf.Close(), cu.ErrOutOfMemory)
			require.NotEqual(t, owesNothing, b.owed())
			require.NoError(t, buf.Close())
			require.NoError(t, buf.Close())
		})
	}
}

// One call unmaps many chunks, however many there are.
func TestManyChunksAreUnmappedAtOnce(t *testing.T) {
	b, dev, _, g := tidy(t)
	buf := ok(vmm.New(dev, 5*g, vmm.WithChunkSize(g)))(t)
	require.Equal(t, 5, b.mappings())
	require.NoError(t, buf.Close())
	require.Equal(t, 1, b.count("cuMemUnmap"))
	require.Equal(t, 5, b.count("cuMemRelease"))
}

// A buffer that is unmapped is closed for everything but Close, which releases its memory.
func TestUnmap(t *testing.T) {
	b, dev, ctx, g := tidy(t)
	buf := ok(vmm.New(dev, 2*g, vmm.WithChunkSize(g)))(t)
	full := freeMemory(t, ctx)
	hold := ok(buf.Hold("somebody"))(t)
	require.ErrorIs(t, buf.Unmap(), vmm.ErrInUse)
	require.NotZero(t, buf.Ptr())
	require.NoError(t, hold.Close())
	b.FailNth("cuMemUnmap", 1, cu.ErrOutOfMemory)
	require.ErrorIs(t, buf.Unmap(), cu.ErrOutOfMemory)
	require.NoError(t, buf.Unmap())
	require.NoError(t, buf.Unmap())
	require.Zero(t, b.mappings())
	require.Zero(t, buf.Ptr())
	_, _, err := buf.Export()
	require.ErrorIs(t, err, cu.ErrClosed)
	require.ErrorIs(t, buf.Grow(4*g), cu.ErrClosed)
	require.Zero(t, b.count("cuMemRelease"))
	require.Equal(t, full, freeMemory(t, ctx), "its memory is still there")
	require.NoError(t, buf.Close())
	require.Equal(t, full+2*g, freeMemory(t, ctx))
	require.Equal(t, 2, b.count("cuMemRelease"))
	require.NoError(t, buf.Unmap(), "after Close")
	require.NoError(t, (*vmm.Buffer)(nil).Unmap())
}
