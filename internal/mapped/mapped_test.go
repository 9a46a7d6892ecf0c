package mapped_test

import (
	"encoding/binary"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/internal/mapped"
	"github.com/gpufd/gpufd/internal/testenv/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Check(m.Run)) }

// of returns the number of this process, as others see it.
func of(t *testing.T) uint64 {
	t.Helper()
	n, err := mapped.Of(os.Getpid())
	require.NoError(t, err)
	return n
}

// The number is that of all that was added, from any goroutine.
func TestCounts(t *testing.T) {
	require.Zero(t, of(t))
	var adders sync.WaitGroup
	for range 8 {
		adders.Go(func() {
			for range 1000 {
				mapped.Add(2)
				mapped.Add(-1)
			}
		})
	}
	adders.Wait()
	require.EqualValues(t, 8000, of(t))
	mapped.Add(-8000)
	require.Zero(t, of(t))
}

// The markers of a process add up: it may have gpufd twice, in Go and in Python.
func TestMarkersAddUp(t *testing.T) {
	mapped.Add(1)
	t.Cleanup(func() { mapped.Add(-1) })
	other, err := descriptor.Sealed("gpufd-mapped", binary.LittleEndian.AppendUint64(nil, 2))
	require.NoError(t, err)
	require.EqualValues(t, 3, of(t))
	require.NoError(t, other.Close())
	require.EqualValues(t, 1, of(t))
}

// A child does not have its parent's marker, and a process that is gone has none.
func TestOtherProcesses(t *testing.T) {
	mapped.Add(1)
	t.Cleanup(func() { mapped.Add(-1) })
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	n, err := mapped.Of(cmd.Process.Pid)
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	_, err = mapped.Of(cmd.Process.Pid)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// A file that cannot be a marker is an error, and no number.
func TestShortMarker(t *testing.T) {
	short, err := descriptor.Sealed("gpufd-mapped", make([]byte, 7))
	require.NoError(t, err)
	_, err = mapped.Of(os.Getpid())
	require.Error(t, err)
	require.NoError(t, short.Close())
}

// Counting costs next to nothing beside a call of the driver.
func TestAddDoesNotAllocate(t *testing.T) {
	require.Zero(t, testing.AllocsPerRun(100, func() { mapped.Add(1); mapped.Add(-1) }))
}

func BenchmarkAdd(b *testing.B) {
	for b.Loop() {
		mapped.Add(1)
		mapped.Add(-1)
	}
}
