package vmm_test

import (
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// FACTS §2: an export costs 600 to 900 µs each time, so it is made once per
// chunk, however many ask, and however many at once.
func TestExportAsksTheDriverOncePerChunk(t *testing.T) {
	b, dev, _, g := tidy(t)
	buf := ok(vmm.New(dev, 3*g, vmm.WithChunkSize(g)))(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			d, files, err := buf.Export()
			if err != nil || len(files) != 3 || d != buf.Describe() {
				t.Errorf("%v, %d files, %v", d, len(files), err)
			}
			for _, f := range files {
				_ = f.Close()
			}
		})
	}
	wg.Wait()
	require.Equal(t, 3, b.count("cuMemExportToShareableHandle"))
	require.NoError(t, buf.Close())
}

// The lent descriptor is the one that duplicates are made of: it costs none, and
// ends with the buffer.
func TestLentDescriptorsAreTheBuffers(t *testing.T) {
	b, dev, ctx, g := tidy(t)
	buf := ok(vmm.New(dev, 2*g, vmm.WithChunkSize(g)))(t)
	want := noise(2*g, 4)
	write(t, ctx, buf.Ptr(), want)
	loan := ok(buf.Lend())(t)
	require.Equal(t, buf.Describe(), loan.Descriptor)
	require.Len(t, loan.Files, 2)
	open := cutest.Descriptors()
	again := ok(buf.Lend())(t)
	require.Same(t, loan.Files[0], again.Files[0])
	require.Same(t, loan.Files[1], again.Files[1])
	require.Equal(t, open, cutest.Descriptors())
	require.Equal(t, 2, b.count("cuMemExportToShareableHandle"))

	got := ok(vmm.Import(dev, loan.Descriptor, loan.Files))(t)
	require.True(t, string(want) == string(read(t, ctx, got.Ptr(), 2*g)))
	require.ErrorIs(t, errOf(got.Lend()), vmm.ErrNotShareable)
	require.ErrorContains(t, errOf(got.Lend()), "pass on the descriptor")
	require.NoError(t, got.Close())

	require.NoError(t, loan.Close())
	require.NoError(t, again.Close())
	require.NoError(t, buf.Close())
	requireClosed(t, loan.Files)
	none, err := buf.Lend()
	require.ErrorIs(t, err, cu.ErrClosed)
	require.Nil(t, none)
}

// A buffer stays open, and as it was, until the last loan has ended. To end one twice
// ends no other.
//
//fault:rows 78
func TestLentBufferIsNotClosed(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	buf := ok(vmm.New(dev, g, vmm.WithChunkSize(g), vmm.WithCapacity(2*g)))(t)
	want := noise(g, 7)
	write(t, ctx, buf.Ptr(), want)
	first := ok(buf.Lend())(t)
	second := ok(buf.Lend())(t)
	for _, l := range []*vmm.Loan{first, second} {
		before := buf.Describe()
		require.ErrorIs(t, buf.Close(), vmm.ErrInUse)
		require.ErrorContains(t, buf.Close(), "end what it was lent for")
		require.Equal(t, before, buf.Describe())
		require.True(t, string(want) == string(read(t, ctx, buf.Ptr(), g)))
		require.NoError(t, buf.Grow(2*g))
		_, files := export(t, buf)
		closeFiles(t, files)
		require.Len(t, l.Files, 1, "what the buffer has grown by is not lent")
		require.NoError(t, l.Close())
		require.NoError(t, l.Close())
	}
	require.NoError(t, buf.Close())
	require.NoError(t, second.Close())
}

// FAULTS 16, 34: no descriptor of memory is inherited, or among the standard
// ones.
func TestFault16and34_ExportedDescriptorsAreTheCallers(t *testing.T) {
	_, dev, _, _ := tidy(t)
	buf := newBuffer(t, dev, 1)
	_, first, err := buf.Export()
	require.NoError(t, err)
	_, second, err := buf.Export()
	require.NoError(t, err)
	require.NotEqual(t, first[0].Fd(), second[0].Fd())
	for _, f := range []*os.File{first[0], second[0]} {
		require.NotZero(t, ok(unix.FcntlInt(f.Fd(), unix.F_GETFD, 0))(t)&unix.FD_CLOEXEC)
		require.Greater(t, f.Fd(), uintptr(2))
		require.NoError(t, f.Close())
	}
}

//fault:rows 38
func TestPartsAreExportedByTheChunk(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	buf := ok(vmm.New(dev, 4*g-3, vmm.WithChunkSize(g)))(t)
	data := noise(4*g-3, 6)
	write(t, ctx, buf.Ptr(), data)
	for _, c := range []struct{ offset, size, chunks uint64 }{
		{0, 1, 1}, {0, g, 1}, {g, g + 1, 2}, {2 * g, 2*g - 3, 2}, {3 * g, g - 3, 1}, {0, 4*g - 3, 4},
	} {
		d, files, err := buf.ExportRange(c.offset, c.size)
		require.NoError(t, err, "%+v", c)
		require.Equal(t, c.size, d.Size)
		require.EqualValues(t, c.chunks, d.Chunks)
		part := ok(vmm.Import(dev, d, files))(t, "%+v", c)
		closeFiles(t, files)
		require.True(t, string(data[c.offset:c.offset+c.size]) == string(read(t, ctx, part.Ptr(), c.size)), "%+v", c)
		require.NoError(t, part.Close())
	}
	// FAULTS 38 among them: offset + size overflows.
	for _, c := range []struct{ offset, size uint64 }{
		{0, 0}, {1, 1}, {g / 2, g}, {4 * g, 1}, {3 * g, g}, {0, 4*g - 2}, {g, ^uint64(0)}, {^uint64(0) - g + 1, g},
	} {
		_, files, err := buf.ExportRange(c.offset, c.size)
		require.ErrorIs(t, err, vmm.ErrSize, "%+v", c)
		require.Empty(t, files)
	}
	require.NoError(t, buf.Close())
}

func TestAllocationExportsDuplicates(t *testing.T) {
	b, dev, _, g := tidy(t)
	a := ok(vmm.Create(dev, g))(t)
	for range 5 {
		f := ok(a.Export())(t)
		h := ok(dev.Driver().ImportMemory(f, g))(t)
		require.NoError(t, f.Close())
		require.NoError(t, h.Close())
	}
	require.Equal(t, 1, b.count("cuMemExportToShareableHandle"))
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.ErrorIs(t, errOf(a.Export()), cu.ErrClosed)
}

// The parts of an export belong together, whatever the buffer does meanwhile.
func TestExportIsOfOneState(t *testing.T) {
	dev := cutest.Device(t)
	g := granularity(t, dev)
	const most = 16
	buf := ok(vmm.New(dev, g, vmm.WithCapacity(most*g)))(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := uint64(2); n <= most; n++ {
			if err := buf.Grow(n * g); err != nil {
				t.Error(err)
			}
		}
	})
	var last vmm.Descriptor
	for done := false; !done; {
		d, files := export(t, buf)
		closeFiles(t, files)
		require.Equal(t, d.Size/g, uint64(len(files)))
		require.Equal(t, d.Size > last.Size, d.Generation > last.Generation, "generation and size go up together")
		require.Equal(t, d.Size == last.Size, d.Generation == last.Generation)
		last, done = d, d.Size == most*g
	}
	wg.Wait()
	require.NoError(t, buf.Close())
}
