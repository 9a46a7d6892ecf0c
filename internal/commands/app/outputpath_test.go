package app

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Links of this user and of root are followed, also to what is not there; those of others are not.
func TestOutputPath(t *testing.T) {
	dir := t.TempDir()
	link := func(name, to string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.Symlink(to, path))
		return path
	}
	none := filepath.Join(dir, "none")
	own := link("own", "none")
	for path, want := range map[string]string{none: none, own: none, link("two", own): none, link("up", "../x"): dir + "/../x"} {
		got, err := OutputPath(path)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := OutputPath(link("loop", "loop"))
	require.ErrorIs(t, err, syscall.ELOOP)
	if os.Geteuid() != 0 {
		t.Skip("only root makes links of another user")
	}
	require.NoError(t, os.Lchown(own, 65534, 65534))
	for _, path := range []string{own, filepath.Join(dir, "two")} {
		_, err = OutputPath(path)
		require.EqualError(t, err, own+` is a link that user 65534 has put there, to "none": it is not followed; name another file`)
	}
}
