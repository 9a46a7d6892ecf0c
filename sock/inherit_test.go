package sock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/testenv"
)

// A socket that somebody keeps outlives who listened there: who connects meanwhile waits.
func TestListenerOfFiles(t *testing.T) {
	path := filepath.Join(safeDir(t), "s")
	first := listenAt(t, path, WithMaxFDs(0))
	files := ok(first.Files())(t)
	defer CloseFiles(files)
	require.NoError(t, first.Close())
	require.FileExists(t, path)
	require.ErrorIs(t, errOf(Listen(path)), ErrListening)

	dialled(t, path)
	second := listenAt(t, path, WithMaxFDs(0), WithInherited(files))
	dialled(t, path)
	for range 2 {
		c := accepted(t, second)
		require.NoError(t, c.Close())
	}
	require.NoError(t, second.Remove())
	require.NoError(t, second.Close())
	require.FileExists(t, path, "the files are not its own")
	require.NoError(t, CloseFiles(files))
	third := listenAt(t, path)
	require.NoError(t, third.Close())
}

func init() {
	// It goes on with the listener of descriptors 3 and 4, says so on stdout, and accepts nobody
	// until its standard input ends.
	children["inheritor"] = func(args []string) error {
		l := testenv.Got(Listen(args[0], WithInherited([]*os.File{os.NewFile(3, "listener"), os.NewFile(4, "lock")})))
		fmt.Println("listening")
		_, err := io.ReadAll(os.Stdin)
		return errors.Join(err, l.Close())
	}
}

// Peers see the process that goes on with a socket, and find its backlog, also if the former
// listener died while it handed the socket over, with a backlog of 0.
func TestInheritedListenerListens(t *testing.T) {
	path := filepath.Join(safeDir(t), "s")
	first := listenAt(t, path)
	files := ok(first.Files())(t)
	defer CloseFiles(files)
	require.NoError(t, first.closeDoor(t.Context()))
	require.NoError(t, first.Close())

	cmd := childCommand(t, "inheritor", path)
	cmd.ExtraFiles = files
	in, out := started(t, cmd)
	requireSays(t, out, "listening")
	for range 3 {
		c := dialled(t, path)
		require.Equal(t, int32(cmd.Process.Pid), c.Peer().PID)
		require.NoError(t, c.Close())
	}
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
}

// A file that is no listener of the path is refused, and stays the caller's.
func TestListenerOfWrongFiles(t *testing.T) {
	path, other := filepath.Join(safeDir(t), "s"), filepath.Join(safeDir(t), "s")
	l := listenAt(t, other)
	defer os.Remove(other)
	files := ok(l.Files())(t)
	defer os.Remove(other + ".lock")
	defer CloseFiles(files)
	require.NoError(t, l.Close())
	for _, wrong := range [][]*os.File{nil, files[:1], {files[1], files[0]}, files, {nil, nil}} {
		require.Error(t, errOf(Listen(path, WithInherited(wrong))))
	}
	again := listenAt(t, other, WithInherited(files))
	require.NoError(t, again.Close())
	require.ErrorIs(t, errOf((*Listener)(nil).Files()), ErrClosed)
}

// A process is waited for by a descriptor that somebody kept.
func TestProcessOfAFile(t *testing.T) {
	child := exec.Command("sleep", "60")
	require.NoError(t, child.Start())
	fd := ok(kernel.ofPID(child.Process.Pid))(t)
	p := ok(newProcess(fd, child.Process.Pid))(t)
	f := ok(p.File())(t)
	require.NoError(t, p.Close())
	require.ErrorIs(t, errOf(p.File()), ErrClosed)

	again := ok(ProcessOf(f))(t)
	require.NoError(t, f.Close())
	require.False(t, again.Died())
	require.NoError(t, child.Process.Kill())
	require.NoError(t, again.Wait(soon(t)))
	_ = child.Wait()
	require.NoError(t, again.Close())

	null := ok(os.Open(os.DevNull))(t)
	defer null.Close()
	require.ErrorIs(t, errOf(ProcessOf(null)), ErrNoProcess)
	require.Error(t, errOf(ProcessOf(nil)))
}
