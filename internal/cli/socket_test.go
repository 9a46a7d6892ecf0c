package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/sock"
)

func TestDefaultSocketIsTheUsersOwn(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	path := filepath.Join(dir, "gpufd", "producer.sock")
	require.Equal(t, path, DefaultSocket())
	require.NoDirExists(t, filepath.Join(dir, "gpufd"))
	for range 2 {
		MakeDefaultDir()
	}
	info, err := os.Stat(filepath.Dir(path))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	for _, unset := range []string{"", "relative"} {
		t.Setenv("XDG_RUNTIME_DIR", unset)
		t.Setenv("TMPDIR", dir)
		require.Equal(t, dir, filepath.Dir(filepath.Dir(DefaultSocket())))
		require.Contains(t, DefaultSocket(), "gpufd-")
	}
}

// Listen makes the socket's directory if that alone is missing, and nothing for an unfit path.
func TestListenMakesTheDirectory(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	listen := func(path ...string) (*sock.Listener, error) {
		at := filepath.Join(path...)
		return Listen(at, func() (*sock.Listener, error) { return sock.Listen(at) })
	}
	for range 2 {
		l, err := listen(dir, "new", "s")
		require.NoError(t, err)
		require.NoError(t, l.Close())
	}
	info, err := os.Stat(filepath.Join(dir, "new"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	_, err = listen(dir, "a", "b", "s")
	require.ErrorIs(t, err, sock.ErrNoDirectory, "one directory is made, not two")
	_, err = listen(dir, "long", strings.Repeat("s", 200))
	require.ErrorIs(t, err, sock.ErrPath)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}
