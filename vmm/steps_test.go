package vmm_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// Who is told of a step may ask the buffer, also while it grows or is exported.
func TestStepsAreToldWithoutLocks(t *testing.T) {
	dev := cutest.Device(t)
	g := granularity(t, dev)
	var buf *vmm.Buffer
	var ops []string
	buf, err := vmm.New(dev, g, vmm.WithCapacity(2*g), vmm.OnStep(func(s vmm.Step) {
		if buf != nil {
			_, _ = buf.Size(), buf.Mapped()
		}
		ops = append(ops, s.Op.String())
	}))
	require.NoError(t, err)
	require.NoError(t, buf.Grow(2*g))
	for range 2 { // the driver exports the first time only
		_, files, err := buf.Export()
		require.NoError(t, err)
		closeFiles(t, files)
	}
	require.Equal(t, []string{"create", "reserve", "map", "access", "create", "map", "access", "export"}, ops)
	require.NoError(t, buf.Close())
}

// What an export says belongs together, whatever the buffer does meanwhile.
func TestExportIsOfOneState(t *testing.T) {
	dev := cutest.Device(t)
	g := granularity(t, dev)
	const most = 16
	buf, err := vmm.New(dev, g, vmm.WithCapacity(most*g))
	require.NoError(t, err)
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
		d, files, err := buf.Export()
		require.NoError(t, err)
		closeFiles(t, files)
		require.Equal(t, d.Size/g, uint64(len(files)))
		require.Equal(t, d.Size > last.Size, d.Generation > last.Generation, "generation and size go up together")
		require.Equal(t, d.Size == last.Size, d.Generation == last.Generation)
		last, done = d, d.Size == most*g
	}
	wg.Wait()
	require.NoError(t, buf.Close())
}

// Imported memory does not grow.
func TestImportedMemoryIsAsItIs(t *testing.T) {
	dev := cutest.Device(t)
	buf, err := vmm.New(dev, 3)
	require.NoError(t, err)
	d, files, err := buf.Export()
	require.NoError(t, err)
	imported, err := vmm.Import(dev, d, files)
	closeFiles(t, files)
	require.NoError(t, err)
	require.ErrorIs(t, imported.Grow(4), vmm.ErrCapacity)
	require.EqualValues(t, 3, imported.Size())
	require.NoError(t, imported.Close())
	require.NoError(t, buf.Close())
}

// What has a meaning for new memory alone is no option of an import.
func TestOptionsOfNewAreNoneOfImport(t *testing.T) {
	for _, o := range []vmm.NewOption{vmm.WithChunkSize(1), vmm.WithCapacity(1), vmm.WithFabric()} {
		_, is := o.(vmm.ImportOption)
		require.False(t, is)
	}
	for _, o := range []vmm.Option{vmm.WithAccess(cu.ReadOnly), vmm.OnStep(nil), vmm.WithReservation(nil)} {
		var _ vmm.NewOption = o
		var _ vmm.ImportOption = o
	}
}

func TestOpsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for op := vmm.OpWait; op <= vmm.OpOpen; op++ {
		require.Regexp(t, "^[a-z]+$", op.String())
		require.False(t, seen[op.String()], op)
		seen[op.String()] = true
	}
	require.Equal(t, "Op(0)", vmm.Op(0).String())
	require.Equal(t, "Op(9)", (vmm.OpOpen + 1).String())
}
