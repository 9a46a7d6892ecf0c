package sock

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/testenv/leak"
)

// refusedThenTaken is a connection whose end b refused files for a while and takes them again.
func refusedThenTaken(t *testing.T) (a, b *Conn) {
	t.Helper()
	a, b = pair(t)
	require.NoError(t, b.RefuseFiles())
	requireWorks(t, a, b)
	require.NoError(t, b.TakeFiles())
	return a, b
}

// TestTakeFiles: after it descriptors arrive again. Each is Take's caller's or is closed by
// Close, and Take gives it once.
func TestTakeFiles(t *testing.T) {
	onBothKernels(t, func(t *testing.T, _ bool) {
		requireNoLeak(t)
		a, b := refusedThenTaken(t)
		require.NoError(t, a.Send(soon(t), []byte("two"), tempFile(t, "first"), tempFile(t, "second")))
		before := leak.OpenFDs()
		rec := ok(b.Receive(soon(t)))(t)
		require.Len(t, rec.Files, 2)

		second := rec.Take(1)
		require.Equal(t, "second", contentOf(t, second))
		require.Nil(t, rec.Take(1), "it was taken")
		first := rec.Files[0]
		require.Equal(t, "first", contentOf(t, first))
		require.NoError(t, rec.Close())
		require.Error(t, errOf(first.Stat()), "Close left open what nobody took")
		require.Equal(t, "second", contentOf(t, second), "Close closed what was taken")
		require.Nil(t, rec.Take(0), "it was closed")
		require.NoError(t, second.Close())
		require.Empty(t, leak.OpenFDs().Since(before))
	})
}

// TestTakeFilesFewerThanDeclared: the bytes may promise any number of descriptors. Files are
// those that came, and Take returns nil for the others.
func TestTakeFilesFewerThanDeclared(t *testing.T) {
	onBothKernels(t, func(t *testing.T, _ bool) {
		requireNoLeak(t)
		a, b := refusedThenTaken(t)
		for sent := range 3 {
			files := rightsOf(t, tempFile(t, "x"), sent)
			require.NoError(t, rawSend(t, a, []byte("3 files"), files))
			rec := ok(b.Receive(soon(t)))(t)
			require.Len(t, rec.Files, sent)
			for _, i := range []int{-1, sent, 2, 3, MaxFDs} {
				require.Nil(t, rec.Take(i), "file %d of %d", i, sent)
			}
			require.NoError(t, rec.Close())
		}
		requireWorks(t, a, b)
	})
}

// TestTakeFilesFromALiar: a peer that sends more than are taken leaves no descriptor here,
// neither what it sent while files were refused nor what it sends after.
func TestTakeFilesFromALiar(t *testing.T) {
	needsKernelsControl(t)
	t.Run("sent while they were refused", func(t *testing.T) {
		olderKernel(t) // which lets the peer send them
		requireNoLeak(t)
		a, b := pair(t)
		require.NoError(t, b.RefuseFiles())
		require.NoError(t, a.Send(soon(t), []byte("refused"), tempFile(t, "x")))
		before := leak.OpenFDs()
		require.ErrorIs(t, errOf(b.Receive(soon(t))), ErrTooManyFDs)
		require.NoError(t, b.TakeFiles())
		require.ErrorIs(t, errOf(b.Receive(soon(t))), ErrStuck, "TakeFiles does not bring back a connection that is stuck")
		require.Empty(t, leak.OpenFDs().Since(before))
	})
	t.Run("too many", func(t *testing.T) {
		onBothKernels(t, func(t *testing.T, _ bool) {
			requireNoLeak(t)
			for _, n := range []int{MaxFDs + 1, 253} {
				a, b := refusedThenTaken(t)
				before := leak.OpenFDs()
				require.NoError(t, rawSend(t, a, []byte("one file"), rightsOf(t, tempFile(t, "x"), n)))
				_, err := b.Receive(soon(t))
				require.ErrorIs(t, err, ErrTooManyFDs)
				require.ErrorIs(t, err, ErrStuck)
				require.LessOrEqual(t, len(leak.OpenFDs().Since(before)), 1, "only the test's own file is open")
			}
		})
	})
}

// TestTakeFilesWithinLimits: it lifts RefuseFiles, and no limit of WithMaxFDs.
func TestTakeFilesWithinLimits(t *testing.T) {
	needsKernelsControl(t)
	requireNoLeak(t)
	olderKernel(t)
	for most := range 3 {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			server, client := limited(t, WithMaxFDs(most))
			require.NoError(t, server.RefuseFiles())
			require.NoError(t, server.TakeFiles())
			requireLimit(t, client, server, most, most+1)
		})
	}
}

// TestTakeFilesKeepsASocketSealed: where no connection may take any, the kernel goes on
// refusing them.
func TestTakeFilesKeepsASocketSealed(t *testing.T) {
	onBothKernels(t, func(t *testing.T, sealed bool) {
		requireNoLeak(t)
		server, client := limited(t, WithMaxFDs(0))
		require.NoError(t, server.TakeFiles())
		if sealed {
			requireRefused(t, client)
			requireWorks(t, client, server)
			return
		}
		require.NoError(t, client.Send(soon(t), []byte("x"), tempFile(t, "x")))
		require.ErrorIs(t, errOf(server.Receive(soon(t))), ErrTooManyFDs)
	})
}
