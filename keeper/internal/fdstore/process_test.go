package fdstore

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/sock"
)

func proc(t *testing.T, pid int, file string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	require.NoError(t, err)
	return strings.TrimSpace(string(text))
}

// memory returns a line of /proc/PID/status in KiB.
func memory(t *testing.T, pid int, field string) int {
	t.Helper()
	_, after, ok := strings.Cut(proc(t, pid, "status"), "\n"+field+":")
	require.True(t, ok, field)
	n, err := strconv.Atoi(strings.Fields(after)[0])
	require.NoError(t, err)
	return n
}

// A store is a process of its own: its parent's death, session and descriptors do not
// matter to it.
func TestStoreOutlivesItsParent(t *testing.T) {
	path := socketPath(t)
	runKilled(t, "spawner", path)
	c := dialed(t, path)
	defer func() { require.NoError(t, c.Exit(soon(t))) }()
	require.Equal(t, map[uint64]int{1: 1}, list(t, c))
	s := status(t, c)
	require.Equal(t, comm, proc(t, s.PID, "comm"))
	dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", s.PID))
	require.NoError(t, err)
	require.Equal(t, "/", dir)
	session, err := unix.Getsid(s.PID)
	require.NoError(t, err)
	require.Equal(t, s.PID, session)
	require.WithinDuration(t, time.Now(), s.Since, time.Minute)

	var inherited []string
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.PID))
	require.NoError(t, err)
	for _, fd := range fds {
		if target, _ := os.Readlink(fd); strings.Contains(target, "memfd:inherited") {
			inherited = append(inherited, target)
		}
	}
	require.Empty(t, inherited)
}

func TestStoreIsKilled(t *testing.T) {
	c := spawnedChild(t, "store")
	require.NoError(t, c.Hold(soon(t), 1, memfds(t, 1)))
	require.NoError(t, c.Err())
	pid := status(t, c).PID
	require.NoError(t, unix.Kill(pid, unix.SIGKILL))
	<-c.Done()
	require.ErrorIs(t, c.Err(), sock.ErrPeerLost)
	_, err := c.List(soon(t))
	require.ErrorIs(t, err, sock.ErrPeerLost)
	<-c.child.over
	require.NoDirExists(t, fmt.Sprint("/proc/", pid), "no zombie")
}

// SIGTERM and SIGINT end a store, and SIGHUP does not. Each end frees the path.
func TestStoreEnds(t *testing.T) {
	for name, end := range map[string]func(c *Client) error{
		"SIGTERM": func(c *Client) error { return unix.Kill(status(t, c).PID, unix.SIGTERM) },
		"SIGINT":  func(c *Client) error { return unix.Kill(status(t, c).PID, unix.SIGINT) },
		"EXIT":    func(c *Client) error { return c.Exit(soon(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			c := spawnedChild(t, "store")
			r, w, err := os.Pipe()
			require.NoError(t, err)
			defer r.Close()
			require.NoError(t, c.Hold(soon(t), 1, []*os.File{w}))
			require.NoError(t, w.Close())
			require.NoError(t, unix.Kill(status(t, c).PID, unix.SIGHUP))
			require.NoError(t, r.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
			_, err = r.Read(make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.NoError(t, end(c))
			<-c.Done()
			require.NoFileExists(t, c.path)
			_, err = Dial(soon(t), c.path)
			require.ErrorIs(t, err, sock.ErrNoListener)
			again, err := Spawn(soon(t), c.path, childArgs("store", c.path)...)
			require.NoError(t, err)
			require.Empty(t, list(t, again))
			require.NoError(t, again.Exit(soon(t)))
			require.NoError(t, again.Close())
		})
	}
}

func TestSpawnThatFails(t *testing.T) {
	path := socketPath(t)
	_, err := Spawn(soon(t), path)
	require.ErrorContains(t, err, "no program")
	_, err = Spawn(soon(t), "store", childArgs("store", "store")...)
	require.ErrorIs(t, err, sock.ErrPath)
	_, err = Spawn(soon(t), path, "/nonexistent")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Spawn(soon(t), path, childArgs("nothing")...)
	require.ErrorContains(t, err, "child nothing: no such child")

	ctx, cancel := context.WithTimeout(soon(t), 20*time.Millisecond)
	defer cancel()
	_, err = Spawn(ctx, path, childArgs("deaf")...)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	other := serving(t, roomy)
	_, err = Spawn(soon(t), other, childArgs("store", other)...)
	require.ErrorIs(t, err, sock.ErrListening)
	require.Empty(t, list(t, dialed(t, other)), "and goes on")
}

// The limit is raised as far as it goes, and a store that is at it says so and goes on.
func TestStoreOutOfDescriptors(t *testing.T) {
	c := spawnedChild(t, "narrow")
	files := memfds(t, 71)
	require.Equal(t, 70, status(t, c).Room)
	require.ErrorIs(t, c.Hold(soon(t), 1, files), ErrFull)
	require.NoError(t, c.Hold(soon(t), 1, files[:70]))
	require.ErrorIs(t, c.Hold(soon(t), 2, files[:64]), ErrFull, "they could all be received")
	requireHolds(t, c, 1, files[:70])
	require.NoError(t, c.Swap(soon(t), []byte("there is room for a manifest")))
	require.NoError(t, c.Swap(soon(t), []byte("and another")))
	_, err := Dial(soon(t), c.path)
	require.ErrorIs(t, err, ErrBusy, "and for another keeper")
	requireHolds(t, c, 1, files[:70])
}

// A store is small. The test binary is not, so this is a program of its own.
func TestMemoryOfAStore(t *testing.T) {
	if os.Getenv("GPUFD_EMULATED") != "" {
		t.Skip("under qemu-user the memory is the emulator's, too")
	}
	path, program := socketPath(t), filepath.Join(t.TempDir(), "store")
	build := exec.CommandContext(soon(t), "go", "build", "-o", program, "./testdata/store")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	c := spawned(t, path, program, path)
	files := memfds(t, 2000)
	for version := range uint64(5) {
		require.NoError(t, c.Hold(soon(t), version, files))
		requireHolds(t, c, version, files)
		if version > 0 {
			require.NoError(t, c.Drop(soon(t), version-1))
		}
	}
	pid := status(t, c).PID
	anon, file := memory(t, pid, "RssAnon"), memory(t, pid, "RssFile")
	t.Logf("RssAnon %d KiB, RssFile %d KiB", anon, file)
	require.LessOrEqual(t, anon+file, 10<<10)
}

// Events on a listening socket do not wake the store, nor change the socket.
func TestListeningSocketIsHeldAsItIs(t *testing.T) {
	c := spawnedChild(t, "store")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	require.NoError(t, unix.SetNonblock(int(f.Fd()), true))
	polled := countPolled(t, status(t, c).PID)
	require.Positive(t, polled)
	require.NoError(t, c.Hold(soon(t), 1, []*os.File{f}))
	files, err := c.Fetch(soon(t), 1)
	require.NoError(t, err)
	flags, err := unix.FcntlInt(files[0].Fd(), unix.F_GETFL, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.O_NONBLOCK)
	require.NoError(t, sock.CloseFiles(append(files, f)))
	require.NoError(t, l.Close())
	conn, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err, "the store keeps it listening")
	require.NoError(t, conn.Close())
	require.Equal(t, polled, countPolled(t, status(t, c).PID))
}

// countPolled is how many descriptors a process waits on by epoll(7).
func countPolled(t *testing.T, pid int) (n int) {
	t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	require.NoError(t, err)
	for _, fd := range fds {
		if target, _ := os.Readlink(fd); strings.Contains(target, "eventpoll") {
			n += strings.Count(proc(t, pid, "fdinfo/"+filepath.Base(fd)), "tfd:")
		}
	}
	return n
}
