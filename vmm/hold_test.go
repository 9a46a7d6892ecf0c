package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// A buffer stays open, and as it was, until the last hold has ended, and says whose it
// is. To end one twice ends no other.
//
//fault:rows 79
func TestHeldBufferIsNotClosed(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	buf := ok(vmm.New(dev, g, vmm.WithCapacity(2*g), vmm.WithChunkSize(g)))(t)
	want := noise(g, 7)
	write(t, ctx, buf.Ptr(), want)
	first := ok(buf.Hold("the first"))(t)
	second := ok(buf.Hold("the second"))(t)
	loan := ok(buf.Lend())(t)
	requireOpen := func(says ...string) {
		err := buf.Close()
		require.ErrorIs(t, err, vmm.ErrInUse)
		for _, s := range says {
			require.ErrorContains(t, err, s)
		}
		require.True(t, string(want) == string(read(t, ctx, buf.Ptr(), g)))
	}
	requireOpen("with 1 loan open", "the first and 1 more open")
	require.NoError(t, loan.Close())
	require.NoError(t, first.Close())
	require.NoError(t, first.Close())
	requireOpen("with the second open")
	require.NoError(t, buf.Grow(2*g))
	requireOpen()
	require.NoError(t, second.Close())
	require.NoError(t, buf.Close())
	require.ErrorIs(t, errOf(buf.Hold("too late")), cu.ErrClosed)
	require.NoError(t, second.Close())
}

// Imported memory is held as one's own.
func TestHeldImportIsNotClosed(t *testing.T) {
	b, dev := bookkept(t)
	leavesNothing(t, b, dev)
	own := newBuffer(t, dev, 1)
	d, files, err := own.Export()
	require.NoError(t, err)
	buf := ok(vmm.Import(dev, d, files))(t)
	closeFiles(t, files)
	h := ok(buf.Hold("its user"))(t)
	require.ErrorIs(t, buf.Close(), vmm.ErrInUse)
	require.NoError(t, h.Close())
	require.NoError(t, buf.Close())
}
