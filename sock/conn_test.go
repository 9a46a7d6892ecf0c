package sock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/testenv/leak"

	"github.com/gpufd/gpufd/internal/testenv"
)

func init() {
	// answers on an inherited socket
	children["inherited"] = func([]string) error {
		c := testenv.Got(FromFile(os.NewFile(3, "inherited")))
		defer c.Close()
		rec := testenv.Got(c.Receive(context.Background()))
		defer rec.Close()
		testenv.Must(c.Send(context.Background(), append([]byte("got "), rec.Data...), rec.Files...))
		return c.WaitClose(context.Background())
	}
}

// TestParentAndChild: one end of a pair goes to a child, records and files both
// ways.
func TestParentAndChild(t *testing.T) {
	requireNoLeak(t)
	a, b := pair(t)
	f := ok(b.File())(t)
	cmd := childCommand(t, "inherited")
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	require.NoError(t, f.Close())
	require.NoError(t, b.Close())

	require.NoError(t, a.Send(soon(t), []byte("hello"), tempFile(t, "content")))
	rec := received(t, a)
	require.Equal(t, "got hello", string(rec.Data))
	require.Equal(t, "content", contentOf(t, rec.Files[0]))
	require.NoError(t, rec.Close())
	require.NoError(t, a.Close())
	require.NoError(t, cmd.Wait())
}

// TestFromFileRefuses what is not a connected socket of the type, and closes it.
func TestFromFileRefuses(t *testing.T) {
	requireNoLeak(t)
	socket := func(domain, kind int) *os.File {
		fd := ok(unix.Socket(domain, kind|unix.SOCK_CLOEXEC, 0))(t)
		return os.NewFile(uintptr(fd), "socket")
	}
	stream, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(stream[1])
	l := listenAt(t, filepath.Join(safeDir(t), "s"))
	listening, err := (&Conn{s: l.s}).File()
	require.NoError(t, err)
	for name, f := range map[string]*os.File{
		"regular file": tempFile(t, "x"),
		"stream":       os.NewFile(uintptr(stream[0]), "stream"),
		"datagram":     socket(unix.AF_UNIX, unix.SOCK_DGRAM),
		"udp":          socket(unix.AF_INET, unix.SOCK_DGRAM),
		"unconnected":  socket(unix.AF_UNIX, unix.SOCK_SEQPACKET),
		"listening":    listening,
	} {
		t.Run(name, func(t *testing.T) {
			c, err := FromFile(f)
			require.ErrorIs(t, err, ErrNotSocket)
			require.Nil(t, c)
			require.ErrorIs(t, f.Close(), os.ErrClosed, "ownership was taken")
		})
	}
	_, err = FromFile(os.NewFile(1<<19, "none"))
	require.ErrorIs(t, err, unix.EBADF)
	require.NotContains(t, err.Error(), "\n", "said twice")
	_, err = FromFile(nil)
	require.ErrorIs(t, err, os.ErrInvalid)
	_, err = FromFile(listening)
	require.ErrorIs(t, err, os.ErrClosed)
}

// TestNothingPanicsOnNil: nil and zero values behave as closed ones, on which each call returns
// the same error.
func TestNothingPanicsOnNil(t *testing.T) {
	closed, _ := pair(t)
	require.NoError(t, closed.Close())
	for _, c := range []*Conn{nil, {}, closed} {
		require.NoError(t, c.Close())
		require.ErrorIs(t, c.Send(context.Background(), []byte("x")), ErrClosed)
		require.ErrorIs(t, c.TrySend([]byte("x")), ErrClosed)
		require.ErrorIs(t, errOf(c.Receive(context.Background())), ErrClosed)
		require.ErrorIs(t, c.WaitClose(context.Background()), ErrClosed)
		require.ErrorIs(t, errOf(c.File()), ErrClosed)
		require.ErrorIs(t, c.RefuseFiles(), ErrClosed)
		require.ErrorIs(t, c.TakeFiles(), ErrClosed)
		requireClosed(t, c.Drop())
		if c != closed {
			require.Zero(t, c.Peer())
		}
	}
	for _, l := range []*Listener{nil, {}} {
		require.NoError(t, l.Close())
		require.Empty(t, l.Path())
		require.ErrorIs(t, errOf(l.Accept(context.Background())), ErrClosed)
	}
	var r *Record
	require.NoError(t, r.Close())
	require.Nil(t, r.Take(0))
	require.NoError(t, CloseFiles(nil))
	require.NoError(t, CloseFiles([]*os.File{nil}))
	requireClosed(t, DropFiles([]*os.File{nil}))
}

// TestCloseFromManyGoroutines: one of them closes, the rest do nothing.
func TestCloseFromManyGoroutines(t *testing.T) {
	requireNoLeak(t)
	l, server, client := connected(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := errors.Join(l.Close(), server.Close(), client.Close()); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	all.Wait()
}

func TestErrorText(t *testing.T) {
	_, err := Dial(soon(t), "/tmp/no/such")
	require.EqualError(t, err, "sock: dial /tmp/no/such: nobody is listening there: connect: no such file or directory")
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "dial", e.Op)
	require.Equal(t, "/tmp/no/such", e.Where)

	a, _ := pair(t)
	err = a.Send(soon(t), nil)
	require.EqualError(t, err, fmt.Sprintf("sock: send (peer %v): record of length 0: send at least one byte", a.Peer()))
}

func BenchmarkRoundTrip(b *testing.B) { benchmarkRoundTrip(b) }

func BenchmarkRoundTripFD(b *testing.B) { benchmarkRoundTrip(b, tempFile(b, "x")) }

func benchmarkRoundTrip(b *testing.B, files ...*os.File) {
	near, far := pair(b)
	record := make([]byte, 64)
	ctx := context.Background()
	go func() {
		for {
			rec, err := far.Receive(ctx)
			if err != nil {
				return
			}
			_ = far.Send(ctx, rec.Data, rec.Files...)
			_ = rec.Close()
		}
	}()
	b.ReportAllocs()
	for b.Loop() {
		require.NoError(b, near.Send(ctx, record, files...))
		rec := ok(near.Receive(ctx))(b)
		require.NoError(b, rec.Close())
	}
}

// Whatever makes a descriptor says so, for leak checks to name it.
func TestMakersOfDescriptorsAreKnown(t *testing.T) {
	path := filepath.Join(safeDir(t), "s")
	requireNoLeak(t)
	inherited := ok(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(t)
	before := leak.OpenFDs()

	a, b := pair(t)
	f := ok(a.File())(t)
	require.NoError(t, a.Send(soon(t), []byte("x"), f))
	rec := received(t, b)
	l := listenAt(t, path)
	c := dialled(t, path)
	d := accepted(t, l)
	left := strings.Join(leak.OpenFDs().Since(before), "\n")
	require.Equal(t, 8, strings.Count(left, "descriptor "), left)
	require.Equal(t, 8, strings.Count(left, "was made at\n"), left)
	require.Equal(t, 8, strings.Count(left, t.Name()), left)

	before = leak.OpenFDs()
	e := ok(FromFile(os.NewFile(uintptr(inherited[0]), "inherited")))(t)
	require.Empty(t, leak.OpenFDs().Since(before), "in the place of the inherited one")
	for _, c := range []io.Closer{a, b, f, &rec, l, c, d, e} {
		require.NoError(t, c.Close())
	}
	require.NoError(t, unix.Close(inherited[1]))
}
