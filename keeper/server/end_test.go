package server

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/keeper/internal/fdstore"
	"github.com/gpufd/gpufd/sock"
)

// requireNothingLeft requires that no socket, lock or anything else of a keeper and its store is left.
func requireNothingLeft(t *testing.T, socket string) {
	t.Helper()
	require.Eventually(t, func() bool {
		left, err := filepath.Glob(socket + "*")
		return err == nil && len(left) == 0
	}, waitLong, waitStep, "files of %s are left", socket)
}

// End ends keeper and store, returns what they had, and leaves nothing behind. A reader keeps what it has
// mapped.
func TestEnd(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "w", 1)
	put(t, c, dev, "w", 2)
	put(t, c, dev, "x", 3)
	held := attach(t, c, dev, "x")
	closed := make(chan error, 1)
	go func() { // as its program does
		<-s.Done()
		closed <- s.Close()
	}()
	lost := ok(End(soon(t), s.opts.Socket))(t)
	require.Len(t, lost, 2)
	require.Equal(t, []any{"w", uint64(2), uint64(small)}, []any{lost[0].Name, lost[0].Version, lost[0].Bytes})
	require.Len(t, lost[1].Holders, 1)
	require.NoError(t, <-closed)
	require.ErrorIs(t, s.Err(), ErrEnded)
	requireNothingLeft(t, s.opts.Socket)
	requireBytes(t, held[0], 3)
	letGoOf(t, held)
	require.ErrorIs(t, errOf(End(soon(t), s.opts.Socket)), sock.ErrNoListener)
}

// End ends a store whose keeper has ended, or was killed.
func TestEndWithoutAKeeper(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "w", 1)
	require.NoError(t, s.Close())
	left := ok(filepath.Glob(s.opts.Socket + "*"))(t)
	require.Greater(t, len(left), 2, "the store has the sockets")
	lost := ok(End(soon(t), s.opts.Socket))(t)
	require.Len(t, lost, 1)
	requireNothingLeft(t, s.opts.Socket)
}

// Another user may not end a keeper.
func TestEndByAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be two users")
	}
	s, _, _ := kept(t)
	s.opts.Policy.Rules = nil
	require.NoError(t, os.Chmod(filepath.Dir(s.opts.Socket), 0o711))
	who := session{server: s}
	who.who.UID = 12345
	requireCode(t, "denied", who.mayEnd())
}

// The store ends by SIGTERM after the keeper, or before it: neither leaves anything.
func TestSignalsLeaveNothing(t *testing.T) {
	for _, keeperFirst := range []bool{true, false} {
		opts, start := options(newSocket(t)), time.Now()
		s := ok(Open(soon(t), opts))(t)
		if keeperFirst {
			require.NoError(t, s.Close())
			require.NoError(t, unix.Kill(s.Status().Store, unix.SIGTERM))
		} else {
			hold(s) // so that it does not start another one
			require.NoError(t, unix.Kill(s.Status().Store, unix.SIGTERM))
			require.Eventually(t, func() bool { return !exists(opts.Socket + storeSuffix) }, waitLong, waitStep)
			time.AfterFunc(20*time.Millisecond, s.finish)
			require.NoError(t, s.Close())
		}
		requireNothingLeft(t, opts.Socket)
		require.ErrorIs(t, errOf(fdstore.Dial(soon(t), opts.Socket+storeSuffix)), sock.ErrNoListener)
		t.Log(keeperFirst, time.Since(start))
	}
}
