package sock

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Remove leaves no file behind, and another listener may follow. Neither a second call
// nor the Close of the first listener touches what is that one's.
func TestRemove(t *testing.T) {
	requireNoLeak(t)
	dir := safeDir(t)
	path := filepath.Join(dir, "s")
	first := listenAt(t, path)
	require.NoError(t, first.Remove())
	requireEmptyDir(t, dir)

	second := listenAt(t, path)
	require.NoError(t, first.Remove())
	require.NoError(t, first.Close())
	require.NoError(t, first.Remove())
	conn := dialled(t, path)
	require.NoError(t, conn.Close())
	require.FileExists(t, path+".lock")

	require.NoError(t, second.Close())
	requireEmptyDir(t, dir)
	require.NoError(t, (*Listener)(nil).Remove())
}

// A file that somebody else has put there since is theirs, even if it has the number of
// one of ours: that may be after Close.
//
//fault:rows 74
func TestRemoveLeavesOthersFiles(t *testing.T) {
	requireNoLeak(t)
	path := filepath.Join(safeDir(t), "s")
	l := listenAt(t, path)
	for _, name := range []string{path, path + ".lock"} {
		require.NoError(t, os.Remove(name))
		require.NoError(t, os.WriteFile(name, nil, 0o600))
	}
	require.NoError(t, l.Remove())
	require.FileExists(t, path)
	require.FileExists(t, path+".lock")

	require.NoError(t, l.Close())
	var err error
	l.id, _, err = inodeAt(path)
	require.NoError(t, err)
	l.lock.id, _, err = inodeAt(path + ".lock")
	require.NoError(t, err)
	require.NoError(t, l.Remove())
	require.FileExists(t, path)
	require.FileExists(t, path+".lock")
}
