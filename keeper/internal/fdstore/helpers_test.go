package fdstore

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/sock"
)

// soon is a deadline for what should happen at once.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// socketPath is a path in a directory that only this user may look into.
func socketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "fdstore")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return filepath.Join(dir, "store")
}

// roomy is a limit that tests do not meet.
const roomy = 1 << 20

// serving is a store in this process, which ends with the test.
func serving(t testing.TB, limit int) (path string) {
	t.Helper()
	path = socketPath(t)
	l, err := sock.Listen(path)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, l, newStore(limit), func() {}) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		require.NoFileExists(t, path)
	})
	return path
}

func dialed(t testing.TB, path string) *Client {
	t.Helper()
	c, err := Dial(soon(t), path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// spawnedChild is spawned with a child of the test binary.
func spawnedChild(t testing.TB, name string) *Client {
	t.Helper()
	path := socketPath(t)
	return spawned(t, path, childArgs(name, path)...)
}

// spawned is a store that is a process of its own, and ends with the test.
func spawned(t testing.TB, path string, argv ...string) *Client {
	t.Helper()
	c, err := Spawn(soon(t), path, argv...)
	require.NoError(t, err)
	t.Cleanup(func() {
		if c.Err() == nil {
			require.NoError(t, c.Exit(soon(t)))
		}
		require.NoError(t, c.Close())
	})
	return c
}

// memfds are n files; the first 32 differ, and so do any 32 in a row.
func memfds(t testing.TB, n int) []*os.File {
	t.Helper()
	var few []*os.File
	for i := range min(n, 32) {
		fd, err := unix.MemfdCreate(fmt.Sprint("test ", i), unix.MFD_CLOEXEC)
		require.NoError(t, err)
		few = append(few, os.NewFile(uintptr(fd), "memfd"))
	}
	t.Cleanup(func() { require.NoError(t, sock.CloseFiles(few)) })
	return slices.Collect(func(yield func(*os.File) bool) {
		for i := 0; i < n && yield(few[i%len(few)]); i++ {
		}
	})
}

func inodes(t testing.TB, files []*os.File) (ids []uint64) {
	t.Helper()
	for _, f := range files {
		var stat unix.Stat_t
		require.NoError(t, unix.Fstat(int(f.Fd()), &stat))
		ids = append(ids, stat.Ino)
	}
	return ids
}

// requireHolds requires that the store has these files under id.
func requireHolds(t testing.TB, c *Client, id uint64, files []*os.File) {
	t.Helper()
	got, err := c.Fetch(soon(t), id)
	require.NoError(t, err)
	require.Equal(t, inodes(t, files), inodes(t, got))
	require.NoError(t, sock.CloseFiles(got))
}

func list(t testing.TB, c *Client) map[uint64]int {
	t.Helper()
	sets, err := c.List(soon(t))
	require.NoError(t, err)
	return sets
}

func status(t testing.TB, c *Client) Status {
	t.Helper()
	s, err := c.Status(soon(t))
	require.NoError(t, err)
	return s
}

func manifest(t testing.TB, c *Client) []byte {
	t.Helper()
	m, err := c.Manifest(soon(t))
	require.NoError(t, err)
	return m
}
