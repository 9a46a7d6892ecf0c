package sock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/testenv"
)

// soon is a deadline for what should happen at once; it is long because
// machines are slow, and costs nothing when all is well.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// briefly is a deadline for what must not happen.
func briefly(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// withBacklog sets how many connections may wait to be accepted.
func withBacklog(n int) ListenOption { return listenOption(func(o *options) { o.backlog = n }) }

func pair(t testing.TB) (a, b *Conn) {
	t.Helper()
	a, b, err := NewPair()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
	return a, b
}

// safeDir is a short directory that only this user may write to, and that every
// user may search.
func safeDir(t testing.TB) string {
	t.Helper()
	dir := ok(os.MkdirTemp("/tmp", "sock"))(t)
	require.NoError(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func listenAt(t testing.TB, path string, opts ...ListenOption) *Listener {
	t.Helper()
	l := ok(Listen(path, opts...))(t)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// connected is a Listener with one connection.
func connected(t testing.TB) (l *Listener, server, client *Conn) {
	t.Helper()
	l = listenAt(t, filepath.Join(safeDir(t), "s"))
	client = dialled(t, l.Path())
	server = accepted(t, l)
	return l, server, client
}

// accepted is the next connection of l, until t ends.
func accepted(t testing.TB, l *Listener) *Conn {
	t.Helper()
	c := ok(l.Accept(soon(t)))(t)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// dialled is a connection to the listener at path, until t ends.
func dialled(t testing.TB, path string, opts ...DialOption) *Conn {
	t.Helper()
	c := ok(Dial(soon(t), path, opts...))(t)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// received is the next record that c receives.
func received(t testing.TB, c *Conn) Record {
	t.Helper()
	rec := ok(c.Receive(soon(t)))(t)
	return rec
}

// childPair is pair in a child process.
func childPair() (a, b *Conn) {
	a, b, err := NewPair()
	testenv.Must(err)
	return a, b
}

// requireServes says that l admits this process, and closes the connection.
func requireServes(t testing.TB, l *Listener) {
	t.Helper()
	mine, server := dialled(t, l.Path()), accepted(t, l)
	requireWorks(t, server, mine)
	require.NoError(t, mine.Close())
	require.NoError(t, server.Close())
}

// requireEmptyDir says that nothing was left behind (invariant 4).
func requireEmptyDir(t testing.TB, dir string) {
	t.Helper()
	entries := ok(os.ReadDir(dir))(t)
	require.Empty(t, entries)
}

// requireWorks says that records still get from a to b.
func requireWorks(t testing.TB, a, b *Conn) {
	t.Helper()
	require.NoError(t, a.Send(soon(t), []byte("still alive")))
	rec := received(t, b)
	require.Equal(t, "still alive", string(rec.Data))
	require.NoError(t, rec.Close())
}

// tempFile is a file that holds content.
func tempFile(t testing.TB, content string) *os.File {
	t.Helper()
	fd := ok(unix.MemfdCreate("test", unix.MFD_CLOEXEC))(t)
	f := os.NewFile(uintptr(fd), content)
	t.Cleanup(func() { require.NoError(t, CloseFiles([]*os.File{f})) })
	require.NoError(t, errOf(f.WriteString(content)))
	return f
}

// contentOf reads a file from its beginning, whatever its offset.
func contentOf(t testing.TB, f *os.File) string {
	t.Helper()
	data := ok(io.ReadAll(io.NewSectionReader(f, 0, 1<<20)))(t)
	return string(data)
}

// rawSend does what Send refuses to.
func rawSend(t testing.TB, c *Conn, record []byte, oob []byte) error {
	t.Helper()
	return c.s.whenWritable(func(fd int) error {
		_, err := unix.SendmsgN(fd, record, oob, nil, unix.MSG_NOSIGNAL)
		return err
	})
}

// rightsOf is a control message with the descriptor of f, n times.
func rightsOf(t testing.TB, f *os.File, n int) (oob []byte) {
	t.Helper()
	require.NoError(t, withFDs([]*os.File{f}, nil, func(fds []int) error {
		many := make([]int, n)
		for i := range many {
			many[i] = fds[0]
		}
		oob = unix.UnixRights(many...)
		return nil
	}))
	return oob
}

// setOption sets a socket option of c to 1.
func setOption(c *Conn, option int) error {
	return c.s.control(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1) })
}

// fill sends until the queue of the peer is full, and returns how many records
// that took.
func fill(t testing.TB, c *Conn) int {
	t.Helper()
	for n := 0; ; n++ {
		err := c.TrySend(fmt.Appendf(nil, "record %d %s", n, make([]byte, 30000)))
		if err != nil {
			require.ErrorIs(t, err, ErrWouldWait)
			require.Positive(t, n)
			return n
		}
	}
}

// isWith reports whether err matches target and holds words.
func isWith(err, target error, words string) bool {
	return errors.Is(err, target) && strings.Contains(err.Error(), words)
}
