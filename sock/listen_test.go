package sock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/testenv"
)

func TestListenDialAccept(t *testing.T) {
	requireNoLeak(t)
	dir := safeDir(t)
	path := filepath.Join(dir, "s")
	l := listenAt(t, path)
	require.Equal(t, path, l.Path())
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, info.Mode())

	client := dialled(t, path)
	server := accepted(t, l)
	want := Peer{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), PID: int32(os.Getpid())}
	require.Equal(t, want, client.Peer())
	require.Equal(t, want, server.Peer())

	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	requireEmptyDir(t, dir)
	_, err = l.Accept(soon(t))
	require.ErrorIs(t, err, ErrClosed)
	requireWorks(t, client, server)
}

// TestModeFromTheStart: the file never has more rights than asked for, and in
// the end exactly those, whatever the umask.
func TestModeFromTheStart(t *testing.T) {
	for _, umask := range []int{0, 0o022, 0o177} {
		for _, mode := range []os.FileMode{0o600, 0o660, 0o666} {
			old := unix.Umask(umask)
			l, err := Listen(filepath.Join(safeDir(t), "s"), WithMode(mode))
			unix.Umask(old)
			require.NoError(t, err)
			info := ok(os.Lstat(l.Path()))(t)
			require.Equal(t, mode, info.Mode().Perm(), "umask %o", umask)
			require.NoError(t, l.Close())
		}
	}
	// The kernel itself gives the file the mode of the socket: without that,
	// it would be wider until chmod.
	fd := ok(newFD())(t)
	defer unix.Close(fd)
	l := &Listener{file: filepath.Join(safeDir(t), "s")}
	old := unix.Umask(0)
	defer unix.Umask(old)
	require.NoError(t, unix.Fchmod(fd, 0o600))
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: l.file}))
	_, mode, err := inodeAt(l.file)
	require.NoError(t, err)
	require.Equal(t, uint32(unix.S_IFSOCK|0o600), mode)
}

func init() {
	// listens until it is killed; says so on stdout
	children["listen"] = func(args []string) error {
		l := testenv.Got(Listen(args[0]))
		fmt.Println("listening")
		_, err := l.Accept(context.Background())
		return fmt.Errorf("accept returned: %w", err)
	}
}

// startListening starts a child that listens at path.
func startListening(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	cmd := childCommand(t, "listen", path)
	_, out := started(t, cmd)
	requireSays(t, out, "listening")
	return cmd
}

// TestFault48_StaleSocket: a killed listener leaves its files behind, and the
// next start reclaims them (invariant 8).
func TestFault48_StaleSocket(t *testing.T) {
	requireNoLeak(t)
	dir := safeDir(t)
	path := filepath.Join(dir, "s")
	cmd := startListening(t, path)
	_, err := Listen(path)
	require.ErrorIs(t, err, ErrListening, "it lives")
	require.NoError(t, cmd.Process.Signal(syscall.SIGKILL))
	require.Error(t, cmd.Wait())

	require.FileExists(t, path)
	require.FileExists(t, path+".lock")
	_, err = Dial(soon(t), path)
	require.ErrorIs(t, err, ErrNoListener)
	require.ErrorContains(t, err, "its owner is gone")

	l := listenAt(t, path)
	c := dialled(t, path)
	require.NoError(t, c.Close())
	require.NoError(t, l.Close())
	requireEmptyDir(t, dir)
}

// bare makes a socket at path without this package's manners, and listens on it
// if backlog is not negative.
func bare(t *testing.T, path string, kind, backlog int) (closeIt func()) {
	t.Helper()
	fd := ok(unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0))(t)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	if backlog >= 0 {
		require.NoError(t, unix.Listen(fd, backlog))
	}
	return sync.OnceFunc(func() { require.NoError(t, unix.Close(fd)) })
}

func TestFault49_LiveOwner(t *testing.T) {
	requireNoLeak(t)
	t.Run("of this package", func(t *testing.T) {
		l, server, client := connected(t)
		require.ErrorIs(t, errOf(Listen(l.Path())), ErrListening)
		requireWorks(t, client, server)
		dialled(t, l.Path())
	})
	for name, c := range map[string]struct{ kind, backlog, clients int }{
		"without a lock":         {unix.SOCK_SEQPACKET, 5, 0},
		"with a full backlog":    {unix.SOCK_SEQPACKET, 0, 1},
		"of stream type":         {unix.SOCK_STREAM, 5, 0},
		"of datagram type":       {unix.SOCK_DGRAM, -1, 0},
		"backlog full of others": {unix.SOCK_SEQPACKET, 3, 4},
	} {
		t.Run(name, func(t *testing.T) {
			dir := safeDir(t)
			path := filepath.Join(dir, "s")
			closeIt := bare(t, path, c.kind, c.backlog)
			defer closeIt()
			for range c.clients {
				dialled(t, path)
			}
			require.ErrorIs(t, errOf(Listen(path)), ErrListening)
			require.NoFileExists(t, path+".lock", "nothing is left behind")
			_, _, err := inodeAt(path)
			require.NoError(t, err, "it was left alone")

			closeIt()
			listenAt(t, path)
		})
	}
}

// TestFault50_NotASocket: what is not ours is refused and left as it was.
func TestFault50_NotASocket(t *testing.T) {
	requireNoLeak(t)
	makers := map[string]func(path string) error{
		"file":      func(p string) error { return os.WriteFile(p, []byte("precious"), 0o600) },
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"fifo":      func(p string) error { return unix.Mkfifo(p, 0o600) },
		"symlink":   func(p string) error { return os.Symlink("elsewhere", p) },
		"symlink to a stale socket": func(p string) error {
			l, err := Listen(p + "2")
			if err != nil {
				return err
			}
			return errors.Join(os.Rename(p+"2", p+"3"), l.Close(), os.Symlink(p+"3", p))
		},
	}
	for name, make := range makers {
		t.Run(name, func(t *testing.T) {
			dir := safeDir(t)
			path := filepath.Join(dir, "s")
			require.NoError(t, make(path))
			before := ok(os.ReadDir(dir))(t)
			require.ErrorIs(t, errOf(Listen(path)), ErrNotSocket)
			after := ok(os.ReadDir(dir))(t)
			require.Equal(t, names(before), names(after))
		})
		if name == "file" { // that is what a lock is
			continue
		}
		t.Run(name+" for a lock", func(t *testing.T) {
			path := filepath.Join(safeDir(t), "s")
			require.NoError(t, make(path+".lock"))
			require.ErrorIs(t, errOf(Listen(path)), ErrNotSocket)
			require.NoFileExists(t, path)
			_, _, err := inodeAt(path + ".lock")
			require.NoError(t, err, "it was left alone")
		})
	}
}

func names(entries []os.DirEntry) (names []string) {
	for _, e := range entries {
		names = append(names, e.Name()+" "+e.Type().String())
	}
	return names
}

// TestFault51_Paths: 107 bytes fit; what cannot be a path is wrong usage, on
// both sides.
func TestFault51_Paths(t *testing.T) {
	requireNoLeak(t)
	dir := safeDir(t)
	longest := filepath.Join(dir, strings.Repeat("x", 107-len(dir)-1))
	l := listenAt(t, longest)
	c := dialled(t, longest)
	require.NoError(t, c.Close())
	require.NoError(t, l.Close())

	for name, path := range map[string]string{
		"empty": "", "too long": longest + "x", "far too long": strings.Repeat("x", 5000), "NUL": dir + "/a\x00b",
		"abstract": "\x00name", "slash": dir + "/", "dot": dir + "/.", "dots": dir + "/..", "root": "/", "here": ".",
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, errOf(Listen(path)), ErrPath)
			require.ErrorIs(t, errOf(Dial(soon(t), path)), ErrPath)
		})
	}
	require.ErrorContains(t, errOf(Listen(longest+"x")), "108 bytes, at most 107")
	requireEmptyDir(t, dir)
}

// TestRelativePaths: they work, also with a name that the library would take
// for an abstract one, and Close finds the files after a chdir.
func TestRelativePaths(t *testing.T) {
	dir := safeDir(t)
	t.Chdir(dir)
	for _, path := range []string{"s", "@s"} {
		l := listenAt(t, path)
		require.NoError(t, bareStat(filepath.Join(dir, path)))
		c := dialled(t, path)
		require.NoError(t, c.Close())
		require.NoError(t, os.Chdir("/"))
		require.NoError(t, l.Close())
		requireEmptyDir(t, dir)
		require.NoError(t, os.Chdir(dir))
	}
}

func bareStat(path string) error {
	_, _, err := inodeAt(path)
	return err
}

func TestFault52_InsecureDirectory(t *testing.T) {
	requireNoLeak(t)
	for _, c := range []struct {
		mode os.FileMode
		err  error
	}{
		{0o700, nil},
		{0o755, nil},
		{0o777, ErrInsecure},
		{0o777 | os.ModeSticky, ErrInsecure},
		{0o720, ErrInsecure},
		{0o702, ErrInsecure},
	} {
		t.Run(c.mode.String(), func(t *testing.T) {
			dir := safeDir(t)
			require.NoError(t, os.Chmod(dir, c.mode))
			l, err := Listen(filepath.Join(dir, "s"))
			require.ErrorIs(t, err, c.err)
			require.NoError(t, l.Close())
			requireEmptyDir(t, dir)
			if err != nil {
				require.ErrorContains(t, err, "0700", "says what to do")
			}
		})
	}
	t.Run("of another user", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to give a directory away")
		}
		dir := safeDir(t)
		require.NoError(t, os.Chown(dir, 12345, 12345))
		_, err := Listen(filepath.Join(dir, "s"))
		require.ErrorIs(t, err, ErrInsecure)
		require.ErrorContains(t, err, "12345")
	})
	t.Run("missing", func(t *testing.T) {
		_, err := Listen(filepath.Join(safeDir(t), "missing", "s"))
		require.ErrorIs(t, err, ErrNoDirectory)
		require.ErrorIs(t, err, os.ErrNotExist)
		require.ErrorContains(t, err, "mkdir -p -m 700")
	})
	t.Run("not a directory", func(t *testing.T) {
		file := filepath.Join(safeDir(t), "f")
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		require.ErrorIs(t, errOf(Listen(filepath.Join(file, "s"))), ErrNoDirectory)
		require.ErrorIs(t, errOf(Listen(filepath.Join(file, "deeper", "s"))), ErrNoDirectory)
	})
}

// TestFault55_DirectoryRemoved: connections go on, Close finds nothing to
// remove, and does not touch what a successor put there.
func TestFault55_DirectoryRemoved(t *testing.T) {
	requireNoLeak(t)
	l, server, client := connected(t)
	dir := filepath.Dir(l.Path())
	require.NoError(t, os.RemoveAll(dir))
	requireWorks(t, client, server)
	require.ErrorIs(t, errOf(Dial(soon(t), l.Path())), ErrNoListener)

	require.NoError(t, os.Mkdir(dir, 0o700))
	successor := listenAt(t, l.Path())
	require.NoError(t, l.Close())
	c := dialled(t, successor.Path())
	require.NoError(t, c.Close())
	require.FileExists(t, successor.Path()+".lock")
	requireWorks(t, client, server)

	require.NoError(t, os.RemoveAll(dir))
}

func init() {
	// waits for the start, tries to listen, says what came of it, and keeps
	// what it has until stdin ends
	children["race"] = func(args []string) error {
		start := os.NewFile(3, "start")
		if _, err := io.ReadAll(start); err != nil {
			return err
		}
		l, err := Listen(args[0])
		switch {
		case err == nil:
			fmt.Println("won")
		case errors.Is(err, ErrListening):
			fmt.Println("in use")
		default:
			fmt.Println(err)
		}
		_, _ = io.ReadAll(os.Stdin)
		return l.Close()
	}
}

// TestFault56_TwoServersRace: of servers that start at once, over a stale socket
// too, exactly one wins.
func TestFault56_TwoServersRace(t *testing.T) {
	requireNoLeak(t)
	const servers = 6
	for round := range 4 {
		dir := safeDir(t)
		path := filepath.Join(dir, "s")
		if round%2 == 1 {
			bare(t, path, unix.SOCK_SEQPACKET, 0)()
		}
		startR, startW, err := os.Pipe()
		require.NoError(t, err)
		endR, endW, err := os.Pipe()
		require.NoError(t, err)
		outR, outW, err := os.Pipe()
		require.NoError(t, err)
		var running []*exec.Cmd
		for range servers {
			cmd := childCommand(t, "race", path)
			cmd.Stdin, cmd.Stdout, cmd.ExtraFiles = endR, outW, []*os.File{startR}
			require.NoError(t, cmd.Start())
			running = append(running, cmd)
		}
		require.NoError(t, CloseFiles([]*os.File{startR, endR, outW, startW})) // go
		said := map[string]int{}
		lines := bufio.NewScanner(outR)
		for range servers {
			require.True(t, lines.Scan())
			said[lines.Text()]++
		}
		require.Equal(t, map[string]int{"won": 1, "in use": servers - 1}, said)
		require.NoError(t, endW.Close())
		for _, cmd := range running {
			require.NoError(t, cmd.Wait())
		}
		require.NoError(t, outR.Close())
		requireEmptyDir(t, dir)
	}
}

// TestLockComesAndGoes: a lock file that is made and removed all the time is
// never held twice. It fails when the file is removed after the lock was given
// up, and when it is not looked for again after it was taken.
func TestLockComesAndGoes(t *testing.T) {
	comeAndGo(t, 5000, nil, func(dir string) (func() error, error) {
		l, err := takeLock(filepath.Join(dir, "lock"))
		return l.release, err
	})
}

// TestListenersComeAndGo: never two at a time, and nothing left in the end.
func TestListenersComeAndGo(t *testing.T) {
	comeAndGo(t, 200, ErrListening, func(dir string) (func() error, error) {
		l, err := Listen(filepath.Join(dir, "s"))
		return l.Close, err
	})
}

// comeAndGo has goroutines take and give up what only one can have, which others are refused with
// an error that matches want, if there is one.
func comeAndGo(t *testing.T, rounds int, want error, take func(dir string) (giveUp func() error, err error)) {
	requireNoLeak(t)
	dir := safeDir(t)
	var alive, won atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range rounds {
				giveUp, err := take(dir)
				if err != nil {
					if want != nil && !errors.Is(err, want) {
						t.Error(err)
					}
					continue
				}
				won.Add(1)
				alive.Add(1)
				for range 10 { // let the others try
					runtime.Gosched()
					if n := alive.Load(); n != 1 {
						t.Errorf("%d holders at once", n)
					}
				}
				alive.Add(-1)
				if err := giveUp(); err != nil {
					t.Errorf("give up: %v", err)
				}
			}
		})
	}
	all.Wait()
	require.Positive(t, won.Load())
	requireEmptyDir(t, dir)
}

func TestDialErrors(t *testing.T) {
	requireNoLeak(t)
	dir := safeDir(t)
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	stream := filepath.Join(dir, "stream")
	defer bare(t, stream, unix.SOCK_STREAM, 1)()
	for path, want := range map[string]error{
		filepath.Join(dir, "nothing"):        ErrNoListener,
		filepath.Join(dir, "missing", "dir"): ErrNoListener,
		filepath.Join(file, "below"):         ErrNoListener,
		file:                                 ErrNotSocket,
		dir:                                  ErrNotSocket,
		stream:                               ErrNotSocket,
	} {
		_, err := Dial(soon(t), path)
		require.ErrorIs(t, err, want, path)
		require.ErrorContains(t, err, path)
	}
}
