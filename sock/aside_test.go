package sock

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/testenv/fusetest"
	"github.com/gpufd/gpufd/internal/testenv/leak"

	"github.com/gpufd/gpufd/internal/testenv"
)

const strangerUID = 4242

func init() {
	// dials, sends a plain record, then one with its descriptor 3 as often as it is told, says so,
	// and ends with its stdin
	children["stranger"] = func(args []string) error {
		c := testenv.Got(Dial(context.Background(), args[0]))
		f := os.NewFile(3, "fd")
		testenv.Must(c.Send(context.Background(), []byte("plain")))
		n, _ := strconv.Atoi(args[1])
		for range n {
			testenv.Must(c.Send(context.Background(), []byte("file"), f))
		}
		fmt.Println("sent")
		_, _ = io.ReadAll(os.Stdin)
		return nil
	}
}

// stranger is a connection to another user, who has sent a plain record and then the file n times.
func stranger(t *testing.T, f *os.File, n int) *Conn {
	t.Helper()
	dir := safeDir(t)
	require.NoError(t, os.Chmod(dir, 0o711))
	l := listenAt(t, filepath.Join(dir, "s"), WithMode(0o666), WithPolicy(Policy{UIDs: []uint32{strangerUID}}))
	cmd := childCommand(t, "stranger", l.Path(), strconv.Itoa(n))
	cmd.ExtraFiles = []*os.File{f}
	asUser(t, cmd, strangerUID, strangerUID)
	stdin, stdout := started(t, cmd)
	t.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() }) // the test's context has killed it
	c := accepted(t, l)
	requireSays(t, stdout, "sent")
	return c
}

func childrenLeft() int {
	left.Lock()
	defer left.Unlock()
	return left.n
}

func requireNobodyLeft(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return childrenLeft() == 0 }, 30*time.Second, time.Millisecond)
}

// Memory of another user comes as that of our own does.
func TestStrangersMemory(t *testing.T) {
	requireNoLeak(t)
	c := stranger(t, tempFile(t, "x"), 2)
	rec := received(t, c)
	require.Equal(t, "plain", string(rec.Data))
	for range 2 {
		rec = received(t, c)
		require.Equal(t, "file", string(rec.Data))
		require.Equal(t, "x", contentOf(t, rec.Files[0]))
		require.NoError(t, rec.Close())
	}
	requireNobodyLeft(t)
}

// A descriptor that another user may keep from being closed is never in this process: a child
// has it (invariant 2).
func TestStrangersFileThatHangs(t *testing.T) {
	closesWait(t, time.Hour)
	f, m := fusetest.Open(t)
	t.Cleanup(func() { m.Abort(); requireNobodyLeft(t) })
	c := stranger(t, f, 3)
	require.NoError(t, f.Close())
	m.Silence(fusetest.Flush, fusetest.Getattr)
	t.Cleanup(m.Abort) // before the stranger is waited for
	before := leak.OpenFDs()
	quickly(t, func() {
		rec := received(t, c)
		require.Equal(t, "plain", string(rec.Data))
		for range 2 { // the second says the same
			_, err := c.Receive(soon(t))
			require.ErrorIs(t, err, ErrUnfit)
			require.ErrorIs(t, err, ErrStuck)
			require.True(t, IsBadRecord(err))
		}
	})
	require.Equal(t, fusetest.Flush, <-m.Asked())
	require.Equal(t, 1, childrenLeft())
	require.Empty(t, leak.OpenFDs().Since(before))
	quickly(t, func() { require.NoError(t, c.Close()) })
	require.Equal(t, fusetest.Flush, <-m.Asked())
	require.Equal(t, 2, childrenLeft(), "another one has what was in the queue")
	m.Abort()
	requireNobodyLeft(t)
}

// A process takes no more from strangers while as many children hang as may.
func TestStrangersFilesAreBounded(t *testing.T) {
	f, m := fusetest.Open(t)
	left.Lock()
	left.n = maxLeft
	left.Unlock()
	t.Cleanup(func() {
		left.Lock()
		defer left.Unlock()
		left.n -= maxLeft
	})
	c := stranger(t, f, 1)
	require.NoError(t, f.Close())
	m.Silence(fusetest.Flush)
	t.Cleanup(m.Abort)
	received(t, c)
	quickly(t, func() {
		_, err := c.Receive(soon(t))
		require.ErrorIs(t, err, ErrUnfit)
		require.ErrorContains(t, err, "64 processes")
		require.NoError(t, c.Close())
	})
	require.Empty(t, m.Asked(), "nobody had the file")
}

// WithoutFiles: the kernel refuses descriptors until a connection takes them, and again later.
func TestWithoutFiles(t *testing.T) {
	onBothKernels(t, func(t *testing.T, sealed bool) {
		requireNoLeak(t)
		l := listenAt(t, filepath.Join(safeDir(t), "s"), WithoutFiles())
		client := dialled(t, l.Path())
		server := accepted(t, l)
		if sealed {
			requireRefused(t, client)
		}
		require.NoError(t, server.TakeFiles())
		require.NoError(t, client.Send(soon(t), []byte("x"), tempFile(t, "x")))
		rec := received(t, server)
		require.Len(t, rec.Files, 1)
		require.NoError(t, rec.Close())
		require.NoError(t, server.RefuseFiles())
		if sealed {
			requireRefused(t, client)
			return
		}
		require.NoError(t, client.Send(soon(t), []byte("x"), tempFile(t, "x")))
		require.ErrorIs(t, errOf(server.Receive(soon(t))), ErrTooManyFDs)
	})
}

// A connection that waited before the listener refused descriptors is not taken for one
// without.
func TestWithoutFilesFromNowOn(t *testing.T) {
	requireNoLeak(t)
	l := listenAt(t, filepath.Join(safeDir(t), "s"))
	c := dialled(t, l.Path())
	require.NoError(t, l.s.control(func(fd int) error { l.s.sealed.Store(refuseRights(fd)); return nil }))
	s := accepted(t, l)
	require.False(t, s.s.sealed.Load())
	require.NoError(t, c.Close())
	require.NoError(t, s.Close())
	require.NoError(t, unix.Access(l.Path(), unix.F_OK))
}

// Reclaim: what nobody else has is removed by Close again.
func TestReclaim(t *testing.T) {
	requireNoLeak(t)
	dir := safeDir(t)
	l := listenAt(t, filepath.Join(dir, "s"))
	files := ok(l.Files())(t)
	require.NoError(t, CloseFiles(files))
	l.Reclaim()
	require.NoError(t, l.Close())
	requireEmptyDir(t, dir)
	(*Listener)(nil).Reclaim()
}

// Descriptors are judged without a child, too, where there can be none (qemu-user).
func TestStrangersPipe(t *testing.T) {
	requireNoLeak(t)
	a, b := pair(t)
	b.s.from = sender{strangerUID, 1}
	require.NoError(t, a.Send(soon(t), []byte("x"), tempFile(t, "x")))
	rec := received(t, b)
	require.Equal(t, "x", contentOf(t, rec.Files[0]))
	require.NoError(t, rec.Close())
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, a.Send(soon(t), []byte("x"), r))
	require.NoError(t, r.Close())
	require.ErrorIs(t, errOf(b.Receive(soon(t))), ErrUnfit)
	require.NoError(t, w.Close())
	requireNobodyLeft(t)
}
