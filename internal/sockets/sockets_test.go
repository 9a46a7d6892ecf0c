package sockets

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The directory is that of a claim, or else the user's: as Python's (python/gpufd/wire/sockets.py).
func TestDirectories(t *testing.T) {
	t.Setenv(claimEnv, "/claim")
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/1")
	require.Equal(t, "/claim/gpufd/keeper.sock", Keeper())
	require.Equal(t, "/run/user/1/gpufd", UserDir())
	t.Setenv(claimEnv, "relative")
	require.Equal(t, "/run/user/1/gpufd/keeper.sock", Keeper())
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", "/other")
	require.Equal(t, "/other", filepath.Dir(Dir()))
}

func TestOfferHasASocketOfItsOwn(t *testing.T) {
	t.Setenv(claimEnv, "/c")
	path, err := Offer("a b+c~-_.@/é%")
	require.NoError(t, err)
	require.Equal(t, "/c/gpufd/offers/a%20b%2Bc~-_.%40%2F%C3%A9%25.sock", path, "as Python's urllib.parse.quote writes it")
	_, err = Offer(strings.Repeat("n", 86))
	require.NoError(t, err)
	_, err = Offer(strings.Repeat("n", 87))
	require.ErrorContains(t, err, "108 bytes")
}

func TestOffersAreFound(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "gpufd-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	t.Setenv(claimEnv, dir)
	all, err := Offers()
	require.NoError(t, err, "without the directory")
	require.Empty(t, all)
	require.NoError(t, os.MkdirAll(offers(), 0o700))
	path, err := Offer("a@b c")
	require.NoError(t, err)
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	for _, other := range []string{"file.sock", "bad%4.sock", "none"} {
		require.NoError(t, os.WriteFile(filepath.Join(offers(), other), nil, 0o600))
	}
	all, err = Offers()
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a@b c": path}, all)
}
