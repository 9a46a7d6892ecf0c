package vmm_test

import (
	"errors"
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/vmm"
)

// exported returns a buffer of three chunks, closed when t ends, and its description.
func exported(t *testing.T, dev *cu.Device) (*vmm.Buffer, vmm.Descriptor) {
	t.Helper()
	g := granularity(t, dev)
	buf := newBuffer(t, dev, 3*g-1, vmm.WithChunkSize(g))
	return buf, buf.Describe()
}

// A wrong description is found before the driver is asked,
// and the descriptors that came along stay the caller's.
func TestImportRefusesWhatCannotBe(t *testing.T) {
	b, dev, _, _ := tidy(t)
	buf, good := exported(t, dev)
	g := good.ChunkSize
	for name, c := range map[string]struct {
		change func(d *vmm.Descriptor)
		field  string
	}{
		"fault 35: size 0":                   {func(d *vmm.Descriptor) { d.Size = 0 }, "size"},
		"fault 36: larger than its chunks":   {func(d *vmm.Descriptor) { d.Size = 3*g + 1 }, "size"},
		"fault 36: largest size":             {func(d *vmm.Descriptor) { d.Size = math.MaxUint64 }, "size"},
		"fault 36: a chunk too many":         {func(d *vmm.Descriptor) { d.Size = 2 * g }, "size"},
		"chunk size 0":                       {func(d *vmm.Descriptor) { d.ChunkSize = 0 }, "chunk size"},
		"fault 37: no multiple":              {func(d *vmm.Descriptor) { d.ChunkSize = g + 1 }, "chunk size"},
		"fault 37: half a granule":           {func(d *vmm.Descriptor) { d.ChunkSize = g / 2 }, "chunk size"},
		"fault 38: overflow to 0":            {func(d *vmm.Descriptor) { d.ChunkSize, d.Chunks, d.Size = 1<<62, 4, g }, "chunk size"},
		"fault 38: overflow":                 {func(d *vmm.Descriptor) { d.ChunkSize, d.Chunks, d.Size = 1<<63, 3, g }, "chunk size"},
		"chunks 0":                           {func(d *vmm.Descriptor) { d.Chunks = 0 }, "number of chunks"},
		"chunks negative":                    {func(d *vmm.Descriptor) { d.Chunks = -3 }, "number of chunks"},
		"too many chunks":                    {func(d *vmm.Descriptor) { d.Chunks, d.Size = vmm.MaxChunks+1, (vmm.MaxChunks+1)*g }, "number of chunks"},
		"more chunks than files":             {func(d *vmm.Descriptor) { d.Chunks, d.Size = 4, 4*g }, "number of chunks"},
		"fewer chunks than files":            {func(d *vmm.Descriptor) { d.Chunks, d.Size = 2, 2*g }, "number of chunks"},
		"fault 37: granularity 0":            {func(d *vmm.Descriptor) { d.Granularity = 0 }, "granularity"},
		"fault 37: granularity does not fit": {func(d *vmm.Descriptor) { d.Granularity = g - 1 }, "granularity"},
		"fault 39: device unknown here":      {func(d *vmm.Descriptor) { d.Device[0] ^= 0xff }, "other device"},
		"fault 39: no device":                {func(d *vmm.Descriptor) { d.Device = cu.UUID{} }, "other device"},
		"kind of the other driver":           {func(d *vmm.Descriptor) { d.Kind = cu.CUDA + cu.Soft - d.Kind }, ""},
		"no kind":                            {func(d *vmm.Descriptor) { d.Kind = 0 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := good
			c.change(&d)
			_, files := export(t, buf)
			_, err := vmm.Import(dev, d, files)
			closeFiles(t, files)
			if c.field == "other device" {
				require.ErrorIs(t, err, vmm.ErrDevice)
				return
			}
			if c.field == "" {
				require.ErrorIs(t, err, vmm.ErrKind)
				require.NotErrorIs(t, err, vmm.ErrDescriptor)
				return
			}
			require.ErrorIs(t, err, vmm.ErrDescriptor)
			var de *vmm.DescriptorError
			require.ErrorAs(t, err, &de)
			require.Equal(t, c.field, de.Field)
		})
	}
	require.Zero(t, b.count("cuMemImportFromShareableHandle"))
}

// FAULTS 36, D1 of docs/driver-facts.md: the driver cannot be asked for the size, and finds a lie out
// when mapping.
func TestFault36_ImportFindsOutALieAboutTheSize(t *testing.T) {
	b, dev, _, g := tidy(t)
	for _, c := range []struct{ is, says uint64 }{{g, 2 * g}, {2 * g, g}, {4 * g, 3 * g}, {g, 64 * g}} {
		buf := ok(vmm.New(dev, c.is))(t)
		d, files := export(t, buf)
		d.Size, d.ChunkSize = c.says, c.says
		owed := b.owed()
		_, err := vmm.Import(dev, d, files)
		require.True(t, isSizeLie(err), "%+v: %v", c, err)
		require.ErrorIs(t, err, vmm.ErrDescriptor)
		require.Equal(t, owed, b.owed())
		closeFiles(t, files)
		require.NoError(t, buf.Close())
	}
}

func isSizeLie(err error) bool {
	var e *cu.Error
	return err != nil && errors.As(err, &e) && e.Op == "cuMemMap" && (e.Result == cu.ErrNotSupported || e.Result == cu.ErrInvalidValue)
}

// FAULTS 26: among the chunks is one of another allocation, of other size.
func TestFault26_ImportOfAnotherAllocation(t *testing.T) {
	b, dev, _, _ := tidy(t)
	buf, d := exported(t, dev)
	other := ok(vmm.New(dev, 2*d.ChunkSize))(t)
	for i := range 3 {
		_, files := export(t, buf)
		_, wrong, err := other.Export()
		require.NoError(t, err)
		require.NoError(t, files[i].Close())
		files[i] = wrong[0]
		owed := b.owed()
		_, err = vmm.Import(dev, d, files)
		require.True(t, isSizeLie(err), "%v", err)
		require.Equal(t, owed, b.owed())
		closeFiles(t, files)
	}
	require.NoError(t, other.Close())
}

// FAULTS 25.
func TestFault25_ImportOfWhatIsNoMemory(t *testing.T) {
	b, dev, _, _ := tidy(t)
	buf, d := exported(t, dev)
	for i := range 3 {
		_, files := export(t, buf)
		r, w, err := os.Pipe()
		require.NoError(t, err)
		require.NoError(t, files[i].Close())
		files[i] = r
		owed := b.owed()
		_, err = vmm.Import(dev, d, files)
		require.ErrorIs(t, err, cu.ErrUnknown)
		require.ErrorContains(t, err, []string{"chunk 1 of 3", "chunk 2 of 3", "chunk 3 of 3"}[i])
		require.Equal(t, owed, b.owed())
		closeFiles(t, files)
		require.NoError(t, w.Close())
	}
	_, files := export(t, buf)
	_, err := vmm.Import(dev, d, []*os.File{files[0], nil, files[2]})
	closeFiles(t, files)
	require.ErrorIs(t, err, os.ErrInvalid)
}

// A single allocation is imported and mapped by hand; its descriptor is the
// caller's, who may close it at once.
func TestImportAllocation(t *testing.T) {
	_, dev, _, g := tidy(t)
	made := ok(vmm.Create(dev, g))(t)
	f := ok(made.Export())(t)
	a := ok(vmm.ImportAllocation(dev, f, g))(t)
	require.NoError(t, f.Close())
	require.NoError(t, made.Close())
	require.Equal(t, g, a.Size())
	require.Equal(t, dev, a.Device())
	require.ErrorIs(t, errOf(a.Export()), vmm.ErrNotShareable)
	res := ok(vmm.Reserve(dev.Driver(), 2*g))(t)
	m := ok(res.Map(g, a))(t)
	require.NoError(t, m.SetAccess(cu.ReadWrite))
	require.NoError(t, a.Close())
	require.Equal(t, res.Ptr().Add(g), m.Ptr())
	require.NoError(t, m.Close())
	require.NoError(t, res.Close())

	require.ErrorIs(t, errOf(vmm.ImportAllocation(dev, f, g)), os.ErrClosed)
	null := ok(os.Open(os.DevNull))(t)
	require.ErrorIs(t, errOf(vmm.ImportAllocation(dev, null, g)), cu.ErrUnknown)
	require.NoError(t, null.Close())
}

// Memory of another device than its exporter says is refused.
func TestImportAllocationOfAnotherDevice(t *testing.T) {
	_, dev, _, _ := tidy(t)
	_, other := cutest.TwoDevices(t, dev.Driver())
	made := ok(vmm.Create(other, granularity(t, other)))(t)
	f := ok(made.Export())(t)
	require.ErrorIs(t, errOf(vmm.ImportAllocation(dev, f, made.Size())), vmm.ErrDescriptor)
	require.NoError(t, f.Close())
	require.NoError(t, made.Close())
}

// TestFault63_SameFileManyGoroutines: 64 goroutines import the same files, each
// of which closes them when it is done. An import gets the memory, or finds a
// file closed; what else opens and closes files meanwhile never gets in between,
// though its descriptors have the same numbers.
func TestFault63_SameFileManyGoroutines(t *testing.T) {
	b, dev, ctx, _ := tidy(t)
	buf, d := exported(t, dev)
	want := noise(4096, 8)
	write(t, ctx, buf.Ptr(), want)
	stop := reuseDescriptors(t)
	for range 10 {
		_, files := export(t, buf)
		var begun, imported atomic.Int32
		var wg sync.WaitGroup
		mapped := make(chan struct{})
		b.Hook("cuMemSetAccess", func(_ sys.Call, next func() sys.CUresult) sys.CUresult {
			r := next()
			if imported.Add(1) == 1 { // this import closes the files next
				close(mapped)
				for begun.Load() < 40 { // and others are in the middle of importing
					runtime.Gosched()
				}
			}
			return r
		})
		for i := range 64 {
			wg.Go(func() {
				if i%8 != 0 {
					<-mapped
				}
				begun.Add(1)
				got, err := vmm.Import(dev, d, files)
				for _, f := range files {
					_ = f.Close()
				}
				if err != nil {
					if !errors.Is(err, os.ErrClosed) {
						t.Error(err)
					}
					return
				}
				host := make([]byte, len(want))
				if err := cu.CopyToHost(ctx, host, got.Ptr()); err != nil || string(host) != string(want) {
					t.Errorf("wrong data, or %v", err)
				}
				if err := got.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Positive(t, imported.Load(), "who closes first has imported")
		requireClosed(t, files)
	}
	stop()
}

// reuseDescriptors opens and closes pipes, which get the numbers that come free.
func reuseDescriptors(t *testing.T) (stop func()) {
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stopped:
				return
			default:
			}
			r, w, err := os.Pipe()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = r.Close(), w.Close()
		}
	}()
	return func() {
		close(stopped)
		<-done
	}
}

// FAULTS 63: the same memory, with files for each.
func TestFault63_SameMemoryManyGoroutines(t *testing.T) {
	b, dev, ctx, _ := tidy(t)
	buf, d := exported(t, dev)
	want := noise(4096, 8)
	write(t, ctx, buf.Ptr(), want)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			_, files, err := buf.Export()
			if err != nil {
				t.Error(err)
				return
			}
			got, err := vmm.Import(dev, d, files)
			for _, f := range files {
				_ = f.Close()
			}
			if err != nil {
				t.Error(err)
				return
			}
			host := make([]byte, len(want))
			if err := cu.CopyToHost(ctx, host, got.Ptr()); err != nil || string(host) != string(want) {
				t.Errorf("wrong data, or %v", err)
			}
			if err := got.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 64*3, b.count("cuMemImportFromShareableHandle"))
}

func TestImportedBufferIsReadOnlyUnlessAsked(t *testing.T) {
	_, dev, ctx, _ := tidy(t)
	buf, d := exported(t, dev)
	ro := importFrom(t, dev, buf)
	require.Equal(t, cu.ReadOnly, ro.Access())
	require.ErrorIs(t, cu.CopyToDevice(ctx, ro.Ptr(), make([]byte, 8)), cu.ErrInvalidValue)
	require.Equal(t, d, ro.Describe())

	rw := importFrom(t, dev, buf, vmm.WithAccess(cu.ReadWrite))
	want := noise(3*d.ChunkSize-1, 7)
	write(t, ctx, rw.Ptr(), want)
	require.True(t, string(want) == string(read(t, ctx, ro.Ptr(), d.Size)))
	require.True(t, string(want) == string(read(t, ctx, buf.Ptr(), d.Size)))
	require.ErrorIs(t, rw.Grow(4*d.ChunkSize), vmm.ErrCapacity)
	require.NoError(t, rw.Close())
	require.NoError(t, ro.Close())
}
