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
	first := ok(Listen(socketPath(t)))(t)
	one, files := kept(t, ctx, 100, 1)
	var again []*os.File
	for _, f := range files {
		fd := ok(unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0))(t)
		again = append(again, fdtrace.File(fd, f.Name()))
	}
	old := ok(first.OfferFiles("data", one, files, ReadOnly))(t)
	att := attached(t, first, "data", dev)
	late := attached(t, first, "data", dev)
	require.NoError(t, first.Close())
	require.NoError(t, old.Close())
	awaitDone(t, att)
	awaitDone(t, late)

	second := ok(Listen(att.path))(t)
	t.Cleanup(func() { require.NoError(t, second.Close()) })
	beside := ok(second.OfferResumed("data", one, again, ReadOnly))(t)
	early, err := late.Resume(soon(t)) // before another has the name
	require.NoError(t, err)
	two, files := kept(t, ctx, 100, 2)
	now := ok(second.OfferFiles("data", two, files, ReadOnly))(t)
	awaitSuperseded(t, early)
	next := ok(att.Resume(soon(t)))(t)
	awaitSuperseded(t, next)
	requireNoise(t, ctx, next.Buffer(), 1)
	require.Len(t, beside.Leases(), 2)
	for _, name := range []string{"data", ""} {
		fresh := attached(t, second, name, dev)
		requireNoise(t, ctx, fresh.Buffer(), 2)
		require.NoError(t, fresh.Close())
	}
	list := ok(List(soon(t), att.path))(t)
	require.Len(t, list, 1)

	require.NoError(t, early.Close())
	require.NoError(t, beside.Close())
	require.ErrorIs(t, awaitDone(t, next), ErrRevoked)
	require.ErrorIs(t, errOf(next.Resume(soon(t))), ErrStale)
	require.NoError(t, next.Close())
	require.NoError(t, now.Close())
}

// An OfferResumed that fails leaves nothing behind, and the files with the caller.
func TestOfferResumedWrong(t *testing.T) {
	_, ctx, srv := listening(t)
	memory, files := kept(t, ctx, 100, 1)
	wrong := memory
	wrong.Chunks = 2
	require.ErrorContains(t, errOf(srv.OfferResumed("data", wrong, files, ReadOnly)), "descriptors for memory of 2 chunks")
	require.Zero(t, offers(srv))
	require.False(t, stands(srv, "data"))
	require.NoError(t, srv.Close())
	require.ErrorIs(t, errOf(srv.OfferResumed("data", memory, files, ReadOnly)), ErrClosed)
	require.NoError(t, sock.CloseFiles(files))
}
