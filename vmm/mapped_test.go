package vmm_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/mapped"
	"github.com/gpufd/gpufd/vmm"
)

// Each mapping of others' memory is counted until it ends, for a checkpoint of this process (C44 of
// docs/driver-facts.md); its own memory is not.
func TestMappedImportsAreCounted(t *testing.T) {
	_, dev, _, g := tidy(t)
	before := ok(mapped.Of(os.Getpid()))(t) // by tests that lose buffers
	has := func(want uint64) {
		t.Helper()
		require.Equal(t, before+want, ok(mapped.Of(os.Getpid()))(t))
	}
	own := ok(vmm.New(dev, 2*g, vmm.WithChunkSize(g)))(t)
	d, files := export(t, own)
	has(0)
	b := ok(vmm.Import(dev, d, files))(t)
	has(2)
	v := ok(b.NewView(cu.ReadOnly))(t)
	has(4)
	require.NoError(t, b.Unmap())
	has(2)
	require.NoError(t, b.Close())
	has(2)
	require.NoError(t, v.Close())
	require.NoError(t, v.Close())
	has(0)

	r := ok(vmm.Reserve(dev.Driver(), 3*g))(t)
	mine := ok(vmm.Create(dev, g))(t)
	beside := ok(r.Map(2*g, mine))(t)
	a := ok(vmm.ImportAllocation(dev, files[0], g))(t)
	m := ok(r.Map(0, a))(t)
	require.NoError(t, a.Close())
	has(1)
	require.ErrorIs(t, errOf(r.Map(0, a)), vmm.ErrOccupied)
	require.NoError(t, errors.Join(beside.Close(), mine.Close()))
	has(1)
	require.NoError(t, m.Close())
	has(0)

	wrong := d
	wrong.ChunkSize, wrong.Size = 2*g, 4*g
	require.Error(t, errOf(vmm.Import(dev, wrong, files)))
	has(0)
	closeFiles(t, files)
	require.NoError(t, r.Close())
	require.NoError(t, own.Close())
}
