package vmm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// Memory is freed, and other memory made at its address. Who has the old memory, or
// descriptors of it, reaches the old memory and nothing else; the generation tells
// which is which.
func TestFault13_OtherMemoryAtTheSameAddress(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	r := ok(vmm.Reserve(dev.Driver(), 2*g))(t)
	old := ok(vmm.New(dev, g, vmm.WithReservation(r)))(t)
	p := old.Ptr()
	write(t, ctx, p, noise(g, 1))
	d, files := export(t, old)
	peer := ok(vmm.Import(dev, d, files, vmm.WithAccess(cu.ReadWrite)))(t)
	closeFiles(t, files)
	_, kept, err := old.Export()
	require.NoError(t, err)

	a := ok(vmm.Create(dev, g))(t)
	beside := ok(r.Map(g, a))(t) // keeps the driver from giving the address to others
	require.NoError(t, old.Close())
	_, _, err = old.Export()
	require.ErrorIs(t, err, cu.ErrClosed)
	fresh := ok(vmm.New(dev, g, vmm.WithReservation(r)))(t)
	require.Equal(t, p, fresh.Ptr())
	require.Equal(t, make([]byte, g), read(t, ctx, p, g))
	write(t, ctx, p, noise(g, 2))

	late := ok(vmm.Import(dev, d, kept))(t)
	closeFiles(t, kept)
	for _, of := range []*vmm.Buffer{peer, late} {
		require.True(t, string(noise(g, 1)) == string(read(t, ctx, of.Ptr(), g)))
		require.Less(t, of.Describe().Generation, fresh.Describe().Generation)
	}
	write(t, ctx, peer.Ptr(), noise(g, 3))
	require.True(t, string(noise(g, 3)) == string(read(t, ctx, late.Ptr(), g)))
	require.NoError(t, old.Close(), "it is closed, and the address another's")
	require.True(t, string(noise(g, 2)) == string(read(t, ctx, p, g)), "nothing has come to the new memory")

	require.NoError(t, beside.Close())
	require.NoError(t, a.Close())
	for _, of := range []*vmm.Buffer{peer, fresh, late, old} {
		require.NoError(t, of.Close())
	}
	require.NoError(t, r.Close())
}
