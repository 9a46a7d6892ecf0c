package share

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
	"github.com/gpufd/gpufd/sock"
)

// A consumer of memory whose name another offer has resumes its lease, hears that there is a
// newer offer, and may stay. Nobody else gets that memory.
func TestOfferResumed(t *testing.T) {
	dev, ctx := leavesNothing(t)
	first, err := Listen(socketPath(t))
	require.NoError(t, err)
	one, files := kept(t, ctx, 100, 1)
	var again []*os.File
	for _, f := range files {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		again = append(again, fdtrace.File(fd, f.Name()))
	}
	old, err := first.OfferFiles("data", one, files, ReadOnly)
	require.NoError(t, err)
	att := attached(t, first, "data", dev)
	late := attached(t, first, "data", dev)
	require.NoError(t, first.Close())
	require.NoError(t, old.Close())
	awaitDone(t, att)
	awaitDone(t, late)

	second, err := Listen(att.path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, second.Close()) })
	beside, err := second.OfferResumed("data", one, again, ReadOnly)
	require.NoError(t, err)
	early, err := late.Resume(soon(t)) // before another has the name
	require.NoError(t, err)
	two, files := kept(t, ctx, 100, 2)
	now, err := second.OfferFiles("data", two, files, ReadOnly)
	require.NoError(t, err)
	awaitSuperseded(t, early)
	next, err := att.Resume(soon(t))
	require.NoError(t, err)
	awaitSuperseded(t, next)
	requireNoise(t, ctx, next.Buffer(), 1)
	require.Len(t, beside.Leases(), 2)
	for _, name := range []string{"data", ""} {
		fresh := attached(t, second, name, dev)
		requireNoise(t, ctx, fresh.Buffer(), 2)
		require.NoError(t, fresh.Close())
	}
	list, err := List(soon(t), att.path)
	require.NoError(t, err)
	require.Len(t, list, 1)

	require.NoError(t, early.Close())
	require.NoError(t, beside.Close())
	require.ErrorIs(t, awaitDone(t, next), ErrRevoked)
	_, err = next.Resume(soon(t))
	require.ErrorIs(t, err, ErrStale)
	require.Empty(t, second.resumed)
	require.NoError(t, next.Close())
	require.NoError(t, now.Close())
}

// What is wrong leaves nothing behind, and the files with the caller.
func TestOfferResumedWrong(t *testing.T) {
	_, ctx := leavesNothing(t)
	srv := listen(t)
	memory, files := kept(t, ctx, 100, 1)
	wrong := memory
	wrong.Chunks = 2
	_, err := srv.OfferResumed("data", wrong, files, ReadOnly)
	require.ErrorContains(t, err, "descriptors for memory of 2 chunks")
	require.Empty(t, srv.watching)
	require.Empty(t, srv.expected)
	require.NoError(t, srv.Close())
	_, err = srv.OfferResumed("data", memory, files, ReadOnly)
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, sock.CloseFiles(files))
}
