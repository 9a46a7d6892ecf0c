package vmm_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// orphaned is memory whose exporter has gone: its descriptors alone keep it (D11).
func orphaned(t *testing.T, ctx *cu.Context, chunks, g uint64, seed int) (vmm.Descriptor, []*os.File) {
	t.Helper()
	buf := ok(vmm.New(ctx.Device(), chunks*g, vmm.WithChunkSize(g)))(t)
	write(t, ctx, buf.Ptr(), noise(chunks*g, seed))
	d, files := export(t, buf)
	require.NoError(t, buf.Close())
	t.Cleanup(func() { closeFiles(t, files) })
	return d, files
}

// A detached buffer leaves its address space alone: the memory is free, and what is imported there next has the same
// address (D12).
func TestDetach(t *testing.T) {
	b, dev, ctx, g := tidy(t)
	free := freeMemory(t, ctx)
	buf := ok(vmm.New(dev, 2*g, vmm.WithChunkSize(g)))(t)
	want := noise(2*g, 3)
	write(t, ctx, buf.Ptr(), want)
	d, files := export(t, buf)
	got := ok(vmm.Import(dev, d, files))(t)
	at := got.Ptr()

	r := ok(got.Detach(context.Background()))(t)
	require.NoError(t, buf.Close())
	require.Less(t, freeMemory(t, ctx), free, "the descriptors keep it")
	closeFiles(t, files)
	require.Equal(t, free, freeMemory(t, ctx))
	require.Equal(t, at, r.Ptr())
	require.Equal(t, 2*g, r.Size())
	require.Zero(t, got.Ptr())
	require.Zero(t, got.Mapped())
	require.Equal(t, "0 handles, 1 reservations, 0 mappings", b.owed())
	require.ErrorIs(t, errOf(got.Detach(context.Background())), cu.ErrClosed)
	require.NoError(t, got.Close())
	require.NoError(t, got.Unmap())
	require.Equal(t, at, r.Ptr(), "the buffer's Close takes nothing with it")

	for seed := range 3 {
		d, files := orphaned(t, ctx, 1+uint64(seed)%2, g, seed)
		next := ok(vmm.Import(dev, d, files, vmm.WithReservation(r)))(t)
		require.Equal(t, at, next.Ptr())
		require.True(t, string(noise(d.Size, seed)) == string(read(t, ctx, at, d.Size)))
		require.Nil(t, ok(next.Detach(context.Background()))(t), "the reservation is the caller's")
	}
	require.NoError(t, r.Close())
	require.Equal(t, owesNothing, b.owed())
}

// Detach of a buffer that is in use fails, and changes nothing.
func TestDetachOfABufferInUse(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	d, files := orphaned(t, ctx, 1, g, 5)
	buf := ok(vmm.Import(dev, d, files, vmm.WithReexport()))(t)
	for name, use := range map[string]func() (end func() error){
		"a hold": func() func() error { return ok(buf.Hold("graph 1"))(t).Close },
		"a loan": func() func() error { return ok(buf.Lend())(t).Close },
		"a view": func() func() error { return ok(buf.NewView(cu.ReadOnly))(t).Close },
	} {
		end := use()
		_, err := buf.Detach(context.Background())
		require.ErrorIs(t, err, vmm.ErrInUse, name)
		require.ErrorContains(t, err, "first", name)
		require.True(t, string(noise(g, 5)) == string(read(t, ctx, buf.Ptr(), g)), name)
		require.NoError(t, end())
		require.NoError(t, end(), "a second end changes nothing")
	}
	r := ok(buf.Detach(context.Background()))(t)
	require.NoError(t, r.Close())

	own := newBuffer(t, dev, g)
	require.ErrorContains(t, errOf(own.Detach(context.Background())), "only imported memory")
	require.NotZero(t, own.Ptr())
	for _, none := range []*vmm.Buffer{nil, {}} {
		require.ErrorIs(t, errOf(none.Detach(context.Background())), cu.ErrClosed)
	}
}

// Detach waits for the work that was queued, and leaves the memory where that goes on.
func TestDetachWaitsForTheWork(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	d, files := orphaned(t, ctx, 1, g, 1)
	buf := ok(vmm.Import(dev, d, files))(t)
	words := newBuffer(t, dev, g)
	stream := ok(ctx.NewStream())(t)
	require.NoError(t, stream.WaitValue64(words.Ptr(), 1, cu.WaitGEQ))
	soon, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, errOf(buf.Detach(soon)), vmm.ErrInUse)
	require.True(t, string(noise(g, 1)) == string(read(t, ctx, buf.Ptr(), g)))
	require.NoError(t, cu.CopyToDevice(ctx, words.Ptr(), []uint64{1}))
	r := ok(buf.Detach(context.Background()))(t)
	require.NoError(t, r.Close())
	require.NoError(t, stream.Close())
}

// If the driver does not unmap, the memory stays, and Detach can be tried again, or Close.
func TestFailedDetach(t *testing.T) {
	b, dev, ctx, g := tidy(t)
	for _, closes := range []bool{false, true} {
		d, files := orphaned(t, ctx, 2, g, 1)
		buf := ok(vmm.Import(dev, d, files))(t)
		fault := b.Fail("cuMemUnmap", cu.ErrOutOfMemory)
		require.ErrorIs(t, errOf(buf.Detach(context.Background())), cu.ErrOutOfMemory)
		fault.Stop()
		require.True(t, string(noise(d.Size, 1)) == string(read(t, ctx, buf.Ptr(), d.Size)))
		if closes {
			require.NoError(t, buf.Close())
		} else {
			r := ok(buf.Detach(context.Background()))(t)
			require.NoError(t, r.Close())
		}
		require.Equal(t, owesNothing, b.owed())
	}
}
