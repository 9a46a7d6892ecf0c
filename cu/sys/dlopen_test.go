package sys

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOpenFileThatIsNotThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	_, err := OpenFile(path)
	var e *LibraryError
	require.ErrorAs(t, err, &e)
	require.Equal(t, []string{path + ": cannot open shared object file: No such file or directory"}, e.Tried)
	require.ErrorContains(t, err, "libcuda could not be opened")
	require.ErrorContains(t, err, "\n  "+path+": cannot open")
	require.False(t, e.Found)
}

func TestOpenFileThatIsNoLibrary(t *testing.T) {
	text := make([]byte, 4096)
	copy(text, "This is no library.\n")
	for reason, content := range map[string][]byte{"file too short": text[:20], "invalid ELF header": text} {
		path := filepath.Join(t.TempDir(), "libcuda.so.1")
		require.NoError(t, os.WriteFile(path, content, 0o600))
		_, err := OpenFile(path)
		var e *LibraryError
		require.ErrorAs(t, err, &e)
		require.Equal(t, []string{path + ": " + reason}, e.Tried)
		require.True(t, e.Found, "it is there")
		require.ErrorContains(t, err, "cannot be loaded")
	}
}

func TestOpenListsEveryPlaceInOrder(t *testing.T) {
	places := []string{"/nowhere/a.so", "/nowhere/b.so", "/nowhere/c.so"}
	_, _, err := open(places)
	var e *LibraryError
	require.ErrorAs(t, err, &e)
	require.Len(t, e.Tried, len(places))
	for i, place := range places {
		require.Contains(t, e.Tried[i], place+": ")
		require.ErrorContains(t, err, place)
	}
}

func TestOpenTakesTheFirstThatOpens(t *testing.T) {
	r, name, err := open([]string{"/nowhere/a.so", "libc.so.6", "libm.so.6"})
	require.NoError(t, err)
	require.Equal(t, "libc.so.6", name)

	addr, err := r("getpid")
	require.NoError(t, err)
	require.NotZero(t, addr)
	_, err = r("cuMakeCoffee")
	require.ErrorContains(t, err, "cuMakeCoffee")
}

func TestCandidates(t *testing.T) {
	names := candidates()
	require.Equal(t, "libcuda.so.1", names[0], "the dynamic linker comes first")
	seen := map[string]bool{}
	for _, name := range names {
		require.Equal(t, "libcuda.so.1", filepath.Base(name))
		require.False(t, seen[name], name)
		seen[name] = true
	}
	for _, place := range []string{"/usr/lib64", "/usr/lib/wsl/lib", "/usr/local/nvidia/lib64", "/usr/local/cuda/compat"} {
		require.True(t, seen[filepath.Join(place, "libcuda.so.1")], place)
	}
}

func TestOpenCUDANamesEveryPlace(t *testing.T) {
	_, _, err := OpenCUDA()
	if err == nil {
		t.Skip("libcuda opens here")
	}
	var e *LibraryError
	require.ErrorAs(t, err, &e)
	require.Len(t, e.Tried, len(candidates()))
	for i, name := range candidates() {
		require.Contains(t, e.Tried[i], name+": ")
	}
}
