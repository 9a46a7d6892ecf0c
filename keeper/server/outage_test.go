package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv/leak"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/fdstore"
	"github.com/gpufd/gpufd/sock"
)

// loggedKeeper opens a keeper that has name a, and returns it with a client and its log. store is the command
// of its fd store, if it is not the usual one.
func loggedKeeper(t *testing.T, store ...string) (*Server, *client, *cu.Device, *diary) {
	t.Helper()
	return loggedKeeperAt(t, newSocket(t), store...)
}

func loggedKeeperAt(t *testing.T, socket string, store ...string) (*Server, *client, *cu.Device, *diary) {
	t.Helper()
	dev, lines := cutest.Device(t), newDiary()
	opts := options(socket)
	opts.Log = lines.log
	if len(store) > 0 {
		opts.Store = store
	}
	s := opened(t, opts)
	c := dialled(t, opts.Socket)
	put(t, c, dev, "a", 1)
	return s, c, dev, lines
}

// anothersStore starts an fd store at path, as a service manager does.
func anothersStore(t testing.TB, path string) *fdstore.Client {
	t.Helper()
	store := ok(fdstore.Spawn(soon(t), path, append(storeCommand(), path)...))(t)
	return store
}

// The connection to the store breaks, and the store lives: the keeper takes it up again.
//
//fault:rows 88
func TestConnectionToTheStoreBreaks(t *testing.T) {
	s, c, dev, lines := loggedKeeper(t)
	st := s.Status()
	for range 3 {
		hold(s)
		require.NoError(t, s.vault.store.Close())
		s.finish()
		lines.await(t, "is there again")
		lines.clear()
		require.Equal(t, st.Store, s.Status().Store)
	}
	put(t, c, dev, "y", 2)
	hold(s)
	held := ok(s.vault.store.List(soon(t)))(t)
	require.Len(t, held, len(s.vault.files))
	for id, n := range held {
		require.Len(t, s.vault.files[id], n)
	}
	s.finish()
	require.NoError(t, s.Close())
	opened(t, s.opts)
	c = dialled(t, s.opts.Socket)
	requireBytes(t, attach(t, c, dev, "a")[0], 1)
	requireBytes(t, attach(t, c, dev, "y")[0], 2)
}

// Somebody else starts a store where the keeper's has died, as a service manager does: the
// keeper takes it, unless it has another keeper's manifest.
//
//fault:rows 88
func TestStoreThatOthersStart(t *testing.T) {
	dev, lines := cutest.Device(t), newDiary()
	opts := options(newSocket(t))
	opts.Store = nil
	path := opts.Socket + storeSuffix
	require.NoError(t, anothersStore(t, path).Close())
	missing, goOn := make(chan bool), make(chan bool) // the keeper waits between them
	opts.Log = func(line string) {
		lines.log(line)
		if strings.Contains(line, "the fd store has died") {
			missing <- true
			<-goOn
		}
	}
	s := opened(t, opts)
	c := dialled(t, opts.Socket)
	put(t, c, dev, "a", 1)

	require.NoError(t, unix.Kill(s.Status().Store, unix.SIGKILL))
	<-missing
	other := anothersStore(t, path)
	f := ok(os.Open(os.DevNull))(t)
	require.NoError(t, other.Hold(soon(t), 7, []*os.File{f}), "what nobody needs, such as of a refill that did not end")
	require.NoError(t, other.Swap(soon(t), []byte("another's")))
	st := ok(other.Status(soon(t)))(t)
	require.NoError(t, errors.Join(f.Close(), other.Close()))
	hold(s)
	s.vault.mu.Lock()
	s.vault.is.PID = st.PID // as in containers, where all stores have the same
	s.vault.mu.Unlock()
	s.finish()
	goOn <- true
	lines.await(t, "holds what another keeper has put there")
	require.NoError(t, unix.Kill(st.PID, unix.SIGKILL))
	<-missing
	require.NoError(t, anothersStore(t, path).Close())
	goOn <- true
	lines.await(t, "holds everything")
	put(t, c, dev, "b", 2)
	require.NoError(t, s.Close())
	opened(t, s.opts)
	c = dialled(t, s.opts.Socket)
	requireBytes(t, attach(t, c, dev, "a")[0], 1)
	requireBytes(t, attach(t, c, dev, "b")[0], 2)
}

// A keeper that has waited in vain for a store reports what to start, also if its time ends
// while it looks for one.
func TestNoStoreInTime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	v := &vault{path: newSocket(t) + storeSuffix}
	var l *sock.Listener
	_, _, err := v.find(ctx, func() { // a store comes then, and does not answer
		l = ok(sock.Listen(v.path))(t)
		go func() {
			if conn, err := l.Accept(ctx); err == nil {
				cancel()
				conn.Drop()
			}
		}()
	})
	require.NoError(t, l.Close())
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "start one there: gpufd fd-store "+v.path)
}

// A reader that dies while there is no store is fenced when there is one again; a lasting
// condition is logged once.
//
//fault:rows 88
func TestFenceWithoutAStore(t *testing.T) {
	program := filepath.Join(t.TempDir(), "store")
	self := ok(os.Executable())(t)
	require.NoError(t, os.Symlink(self, program))
	s, c, _, lines := loggedKeeper(t, program, storeArgument)
	cmd := cutest.Child(soon(t), "deaf", socketEnv+"="+s.opts.Socket)
	in := ok(cmd.StdinPipe())(t)
	defer in.Close()
	require.NoError(t, cmd.Start())
	eventually(t, c, "a", func(i api.Info) bool { return len(i.Holders) == 1 })
	require.NoError(t, os.Remove(program))
	hold(s)
	require.NoError(t, unix.Kill(s.vault.pid(), unix.SIGKILL))
	s.finish()
	lines.await(t, "may be lost if this keeper ends")
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool {
		hold(s)
		defer s.finish()
		return len(s.dead) > 0
	}, waitLong, waitStep)
	require.Len(t, stat(t, c, "a").Holders, 1)
	require.Less(t, strings.Count(lines.text(), "\n"), 8, "%s", lazily(lines.text))
	require.NoError(t, os.Symlink(self, program))
	eventually(t, c, "a", func(i api.Info) bool { return len(i.Holders) == 0 })
}

// A process that attaches again and again is waited for once, and not when it has nothing.
func TestReaderThatComesAndGoes(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "x", 1)
	for range 20 {
		one := ok(keeper.Attach(soon(t), dev.Driver(), c.Client, "x", keeper.Want{}))(t)
		eventually(t, c, "x", func(i api.Info) bool { return len(i.Holders) == 1 })
		letGoOf(t, one)
		eventually(t, c, "x", func(i api.Info) bool { return len(i.Holders) == 0 })
		require.NoError(t, c.Remove(soon(t), "x"))
		put(t, c, dev, "x", 1)
	}
	require.Less(t, leak.OpenFDs().Kinds()["anon_inode:[pidfd]"], 12)
	hold(s)
	defer s.finish()
	require.LessOrEqual(t, len(s.processes.watched), 2)
}
