package cli

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/pattern"
)

// No integer is left out, filled twice or counted twice where pieces meet.
func TestPiecesOfKernels(t *testing.T) {
	dev := cutest.Device(t)
	ctx, err := dev.PrimaryContext()
	require.NoError(t, err)
	defer func() { require.NoError(t, ctx.Close()) }()
	before := piece[cu.Soft]
	piece[cu.Soft] = 48
	defer func() { piece[cu.Soft] = before }()
	k, err := NewKernels(ctx)
	require.NoError(t, err)
	const room = 512
	mem, err := ctx.Alloc(room)
	require.NoError(t, err)
	none := func(uint64) error { return nil }
	for _, size := range []uint64{1, 47, 48, 49, 96, 97, 500} {
		require.NoError(t, cu.Fill(ctx, mem.Ptr(), uint8(0xee), room))
		require.NoError(t, ctx.Synchronize(t.Context()))
		require.NoError(t, k.Fill(t.Context(), mem.Ptr(), size, 9, none))
		got := make([]byte, room)
		require.NoError(t, cu.CopyToHost(ctx, got, mem.Ptr()))
		require.Zero(t, pattern.Check(got[:size], 0, 9))
		require.Equal(t, slices.Repeat([]byte{0xee}, int(room-size)), got[size:], "%d bytes, and no more", size)
		for _, at := range []uint64{size - 1, size / 2, 0} { // and so more and more are wrong
			got[at] ^= 0x80
			require.NoError(t, cu.CopyToDevice(ctx, mem.Ptr(), got))
			var seen []uint64
			wrong, err := k.Check(t.Context(), mem.Ptr(), size, 9, func(done uint64) error { seen = append(seen, done); return nil })
			require.NoError(t, err)
			require.Equal(t, pattern.Check(got[:size], 0, 9), wrong, "%d bytes", size)
			require.Equal(t, size, seen[len(seen)-1])
			require.True(t, slices.IsSorted(seen))
		}
	}
	require.NoError(t, k.Close())
}
