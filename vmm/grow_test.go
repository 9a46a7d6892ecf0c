package vmm_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// Growth moves nothing and loses nothing; who attached before keeps what they
// have and can tell by the generation.
func TestGrowKeepsAddressAndData(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	buf := newBuffer(t, dev, g, vmm.WithChunkSize(g), vmm.WithCapacity(4*g))
	p, want := buf.Ptr(), noise(g, 1)
	write(t, ctx, p, want)
	d, files := export(t, buf)
	peer := ok(vmm.Import(dev, d, files))(t)
	closeFiles(t, files)

	require.NoError(t, buf.Grow(2*g+1))
	require.Equal(t, p, buf.Ptr())
	require.Equal(t, 2*g+1, buf.Size())
	require.Equal(t, 3*g, buf.Mapped())
	require.Greater(t, buf.Describe().Generation, d.Generation)
	require.Equal(t, 3, buf.Describe().Chunks)
	require.True(t, string(want) == string(read(t, ctx, p, g)))
	more := noise(2*g, 2)
	write(t, ctx, p.Add(g), more)
	require.True(t, string(more) == string(read(t, ctx, p.Add(g), 2*g)))

	require.Equal(t, d.Generation, peer.Describe().Generation)
	require.Equal(t, g, peer.Size())
	require.True(t, string(want) == string(read(t, ctx, peer.Ptr(), g)))
	require.NoError(t, peer.Close())
}

func TestGrowWithinTheLastChunkMakesNone(t *testing.T) {
	b, dev, _, g := tidy(t)
	buf := newBuffer(t, dev, 1, vmm.WithChunkSize(g), vmm.WithCapacity(2*g))
	first := buf.Describe().Generation
	require.NoError(t, buf.Grow(g))
	require.Equal(t, 1, b.count("cuMemCreate"))
	require.Equal(t, g, buf.Size())
	grown := buf.Describe().Generation
	require.Greater(t, grown, first)
	for _, size := range []uint64{0, 1, g} { // nothing to do
		require.NoError(t, buf.Grow(size))
		require.Equal(t, g, buf.Size())
	}
	require.Equal(t, grown, buf.Describe().Generation, "the shape is the same")
}

func TestGrowStopsAtTheCapacity(t *testing.T) {
	_, dev, _, g := tidy(t)
	buf := ok(vmm.New(dev, g, vmm.WithChunkSize(g), vmm.WithCapacity(2*g-1)))(t)
	require.ErrorIs(t, buf.Grow(2*g+1), vmm.ErrCapacity)
	require.NoError(t, buf.Grow(2*g), "the capacity is rounded up")
	require.ErrorIs(t, buf.Grow(2*g+1), vmm.ErrCapacity)
	require.Equal(t, 2*g, buf.Size())
	require.NoError(t, buf.Close())

	tight := ok(vmm.New(dev, g))(t)
	require.ErrorIs(t, tight.Grow(g+1), vmm.ErrCapacity)
	require.NoError(t, tight.Close())
}

// Invariant 4.
func TestFailedGrowLeavesTheBufferAsItWas(t *testing.T) {
	b, dev, ctx, g := tidy(t)
	buf := ok(vmm.New(dev, g, vmm.WithChunkSize(g), vmm.WithCapacity(4*g)))(t)
	want, before, owed := noise(g, 3), buf.Describe(), b.owed()
	write(t, ctx, buf.Ptr(), want)
	free := freeMemory(t, ctx)
	failures := 0
	for n := 1; ; n++ {
		b.failNth(n)
		err := buf.Grow(4 * g)
		hit := b.hit()
		b.failNth(0)
		if hit == "" {
			require.NoError(t, err)
			break
		}
		failures++
		require.ErrorIs(t, err, cu.ErrOutOfMemory, hit)
		require.Equal(t, before, buf.Describe(), hit)
		require.Equal(t, g, buf.Mapped(), hit)
		require.Equal(t, owed, b.owed(), hit)
		require.Equal(t, free, freeMemory(t, ctx), hit)
		require.True(t, string(want) == string(read(t, ctx, buf.Ptr(), g)), hit)
	}
	require.Equal(t, 3+3+1, failures, "creates, maps, access")
	require.Equal(t, 4*g, buf.Size())
	require.NoError(t, buf.Close())
}

func TestGrowFromManyGoroutines(t *testing.T) {
	b, dev, _, g := tidy(t)
	buf := ok(vmm.New(dev, g, vmm.WithChunkSize(g), vmm.WithCapacity(8*g)))(t)
	var wg sync.WaitGroup
	for i := range uint64(8) {
		wg.Go(func() {
			if err := buf.Grow((i + 1) * g); err != nil {
				t.Error(err)
			}
			_, files, err := buf.Export()
			if err != nil {
				t.Error(err)
			}
			for _, f := range files {
				_ = f.Close()
			}
		})
	}
	wg.Wait()
	require.Equal(t, 8*g, buf.Size())
	require.Equal(t, 8, b.count("cuMemCreate"))
	require.NoError(t, buf.Close())
}
