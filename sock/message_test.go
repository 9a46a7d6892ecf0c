package sock

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/testenv/leak"

	"github.com/gpufd/gpufd/internal/testenv"
)

func TestFault19_NoFD(t *testing.T) {
	requireNoLeak(t)
	a, b := pair(t)
	for _, size := range []int{1, 2, 4096, MaxRecord - 1, MaxRecord} {
		want := bytes.Repeat([]byte{byte(size)}, size)
		require.NoError(t, a.Send(soon(t), want))
		rec := received(t, b)
		require.Equal(t, want, rec.Data)
		require.Empty(t, rec.Files)
	}
}

// TestRecordsKeepTheirData: the buffer behind Receive is not the one it returns.
func TestRecordsKeepTheirData(t *testing.T) {
	a, b := pair(t)
	var got []string
	var recs []Record
	for _, text := range []string{"first", "second", "third"} {
		require.NoError(t, a.Send(soon(t), []byte(text)))
		rec := received(t, b)
		recs = append(recs, rec)
	}
	for _, rec := range recs {
		got = append(got, string(rec.Data))
	}
	require.Equal(t, []string{"first", "second", "third"}, got)
}

func TestFault20_TwoFDs(t *testing.T) {
	requireNoLeak(t)
	a, b := pair(t)
	require.NoError(t, a.Send(soon(t), []byte("two"), tempFile(t, "first"), tempFile(t, "second")))
	rec := received(t, b)
	require.Len(t, rec.Files, 2)
	require.Equal(t, "second", contentOf(t, rec.Files[1]))

	first := rec.Take(0)
	for _, i := range []int{-1, 0, 2, MaxFDs} { // 0 was taken
		require.Nil(t, rec.Take(i), "file %d", i)
	}
	require.NoError(t, rec.Close())
	require.NoError(t, rec.Close())
	require.Nil(t, rec.Take(1), "it was closed")
	require.Equal(t, "first", contentOf(t, first), "Close leaves alone what was taken")
	require.NoError(t, first.Close())
}

func TestFault21_TooManyFDs(t *testing.T) {
	requireNoLeak(t)
	a, b := pair(t)
	f := tempFile(t, "x")

	require.ErrorIs(t, a.Send(soon(t), []byte("65"), slices.Repeat([]*os.File{f}, 65)...), ErrTooManyFDs)
	require.ErrorIs(t, rawSend(t, a, []byte("254"), rightsOf(t, f, 254)), unix.EINVAL, "the kernel's limit")

	require.NoError(t, a.Send(soon(t), []byte("64"), slices.Repeat([]*os.File{f}, 64)...))
	rec := received(t, b)
	require.Len(t, rec.Files, 64)
	require.NoError(t, rec.Close())

	for _, n := range []int{65, 253} {
		a, b := pair(t)
		require.NoError(t, rawSend(t, a, []byte("many"), rightsOf(t, f, n)))
		before := leak.OpenFDs()
		rec, err := b.Receive(soon(t))
		require.ErrorIs(t, err, ErrTooManyFDs)
		require.ErrorContains(t, err, fmt.Sprint(n))
		require.Empty(t, rec.Files)
		require.Empty(t, leak.OpenFDs().Since(before))
	}
}

func init() {
	// receives 5 descriptors with room for 0 and for 2
	children["out-of-fds-receiving"] = func([]string) error {
		before := leak.OpenFDs()
		for range 20 { // a leak would show as fewer and fewer arriving
			for _, spare := range []int{0, 2} {
				if err := receiveFive(spare); err != nil {
					return fmt.Errorf("spare %d: %w", spare, err)
				}
			}
		}
		if leaked := leak.OpenFDs().Since(before); len(leaked) > 0 {
			return fmt.Errorf("leaked %q", leaked)
		}
		return nil
	}
}

// receiveFive sends 5 descriptors where spare fit.
func receiveFive(spare int) error {
	a, b, err := NewPair()
	if err != nil {
		return err
	}
	defer a.Close()
	defer b.Close()
	defer setFDLimit(1000)
	if err := limitFDs(spare); err != nil {
		return err
	}
	if err := a.Send(context.Background(), []byte("five"), slices.Repeat([]*os.File{os.Stderr}, 5)...); err != nil {
		return err
	}
	for range 2 { // once more with room again
		rec, err := b.Receive(context.Background())
		if want := fmt.Sprintf("lost: %d arrived; raise the limit", spare); !isWith(err, ErrControlTruncated, want) {
			return fmt.Errorf("got %v, %w, want %q", rec, err, want)
		}
		if err := setFDLimit(1000); err != nil {
			return err
		}
	}
	return nil
}

// TestFault22and57_OutOfFDsReceiving: what arrives of a record that does not fit is
// closed, and the error says what to do.
func TestFault22and57_OutOfFDsReceiving(t *testing.T) { runChild(t, "out-of-fds-receiving") }

func TestFault23_RecordTooLong(t *testing.T) {
	requireNoLeak(t)
	f := tempFile(t, "x")
	for _, size := range []int{MaxRecord + 1, 200_000} {
		a, b := pair(t)
		require.ErrorIs(t, a.Send(soon(t), make([]byte, size), f), ErrTooLong)
		require.NoError(t, rawSend(t, a, make([]byte, size), nil))
		_, err := b.Receive(soon(t))
		require.ErrorIs(t, err, ErrTruncated)
		require.ErrorContains(t, err, fmt.Sprint(size), "says how long it was")
		requireWorks(t, a, b)

		require.NoError(t, rawSend(t, a, make([]byte, size), rightsOf(t, f, 2)))
		before := leak.OpenFDs()
		for range 2 {
			_, err = b.Receive(soon(t))
			require.ErrorIs(t, err, ErrTruncated)
			require.ErrorContains(t, err, fmt.Sprint(size))
			require.Empty(t, leak.OpenFDs().Since(before))
		}
	}
}

func TestFault24_EmptyRecord(t *testing.T) {
	requireNoLeak(t)
	f := tempFile(t, "x")

	t.Run("with descriptors", func(t *testing.T) {
		a, b := pair(t)
		require.ErrorIs(t, a.Send(soon(t), nil, f), ErrEmptyRecord)
		require.NoError(t, rawSendEmpty(t, a, rightsOf(t, f, 3)))
		before := leak.OpenFDs()
		_, err := b.Receive(soon(t))
		require.ErrorIs(t, err, ErrEmptyRecord)
		require.ErrorContains(t, err, "with 3 file descriptors")
		require.Empty(t, leak.OpenFDs().Since(before))
	})
	for name, sealed := range map[string]bool{"without": false, "without, where none can come": true} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			b.s.sealed.Store(sealed)
			for range 3 {
				require.NoError(t, rawSend(t, a, nil, nil))
			}
			require.NoError(t, a.Send(soon(t), []byte("behind them")))
			for range 3 {
				_, err := b.Receive(soon(t))
				require.ErrorIs(t, err, ErrEmptyRecord)
				require.NotErrorIs(t, err, ErrPeerLost, "it lives")
			}
			rec := received(t, b)
			require.Equal(t, "behind them", string(rec.Data))
		})
	}
	t.Run("and a last one behind it", func(t *testing.T) {
		a, b := pair(t)
		require.NoError(t, rawSend(t, a, nil, nil))
		require.NoError(t, a.Send(soon(t), []byte("last")))
		require.NoError(t, a.Close())
		require.ErrorIs(t, errOf(b.Receive(soon(t))), ErrEmptyRecord)
		rec, err := b.Receive(soon(t))
		require.NoError(t, err, "the end must not hide it")
		require.Equal(t, "last", string(rec.Data))
		require.ErrorIs(t, errOf(b.Receive(soon(t))), io.EOF)
	})
}

// TestFault25_AnyFD: whatever an fd stands for arrives as it is.
func TestFault25_AnyFD(t *testing.T) {
	requireNoLeak(t)
	a, b := pair(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	dir := ok(os.Open(t.TempDir()))(t)
	null := ok(os.OpenFile(os.DevNull, os.O_RDWR, 0))(t)
	regular := ok(os.Create(filepath.Join(t.TempDir(), "f")))(t)
	self := ok(a.File())(t)
	sent := []*os.File{r, w, dir, null, regular, self, tempFile(t, "memfd")}
	require.NoError(t, a.Send(soon(t), []byte("all"), sent...))

	rec := received(t, b)
	for i, f := range rec.Files {
		want := ok(sent[i].Stat())(t)
		got := ok(f.Stat())(t)
		require.True(t, os.SameFile(want, got))
		require.NoError(t, withFDs([]*os.File{f}, nil, func(fds []int) error {
			flags, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFD, 0)
			require.Equal(t, unix.FD_CLOEXEC, flags, "no child inherits it")
			return err
		}))
	}
	require.NoError(t, rec.Close())
	require.NoError(t, CloseFiles(sent))
}

// TestSendLeavesFilesAlone: the caller keeps its files, in the mode they had.
func TestSendLeavesFilesAlone(t *testing.T) {
	requireNoLeak(t)
	a, b := pair(t)
	r, w, err := os.Pipe() // non-blocking, as Go makes them
	require.NoError(t, err)
	require.NoError(t, a.Send(soon(t), []byte("same file twice"), r, r))
	rec := received(t, b)
	require.Len(t, rec.Files, 2)
	require.NoError(t, rec.Close())

	require.NoError(t, withFDs([]*os.File{r}, nil, func(fds []int) error {
		flags, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFL, 0)
		require.NotZero(t, flags&unix.O_NONBLOCK, "os.File.Fd would have cleared it")
		return err
	}))
	require.NoError(t, errOf(w.WriteString("still works")))
	require.NoError(t, CloseFiles([]*os.File{r, w}))

	err = a.Send(soon(t), []byte("closed"), tempFile(t, "open"), r)
	require.ErrorIs(t, err, os.ErrClosed)
	require.NotErrorIs(t, err, ErrClosed, "that is for the connection")
	require.ErrorContains(t, err, "file 1")
	require.ErrorIs(t, a.Send(soon(t), []byte("nil"), nil), os.ErrInvalid)
	require.ErrorIs(t, errOf(b.Receive(briefly(t))), context.DeadlineExceeded, "nothing was sent")
	requireWorks(t, a, b)
}

// TestUnexpectedControlMessage: credentials that nobody asked for are an error,
// and what came with them is closed.
func TestUnexpectedControlMessage(t *testing.T) {
	requireNoLeak(t)
	for name, option := range map[string]int{"credentials": unix.SO_PASSCRED, "pidfd": unix.SO_PASSPIDFD} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			if err := setOption(b, option); err != nil {
				t.Skipf("this kernel has no such option: %v", err)
			}
			require.NoError(t, a.Send(soon(t), []byte("x"), tempFile(t, "x")))
			before := leak.OpenFDs()
			require.ErrorIs(t, errOf(b.Receive(soon(t))), ErrControl)
			require.Empty(t, leak.OpenFDs().Since(before))

			// An inherited socket is freed of the option.
			f := ok(b.File())(t)
			inherited := ok(FromFile(f))(t)
			rec, err := inherited.Receive(soon(t))
			require.NoError(t, err, "the record is where it was")
			require.Len(t, rec.Files, 1)
			require.NoError(t, rec.Close())
			requireWorks(t, a, inherited)
			require.NoError(t, inherited.Close())
		})
	}
}

func TestFault30_PeerCloses(t *testing.T) {
	requireNoLeak(t)
	t.Run("having read everything", func(t *testing.T) {
		a, b := pair(t)
		require.NoError(t, a.Close())
		for range 2 {
			_, err := b.Receive(soon(t))
			require.ErrorIs(t, err, ErrPeerLost)
			require.ErrorIs(t, err, io.EOF)
		}
		require.ErrorIs(t, b.Send(soon(t), []byte("x")), ErrPeerLost)
	})
	t.Run("with records unread", func(t *testing.T) {
		a, b := pair(t)
		require.NoError(t, b.Send(soon(t), []byte("unread"), tempFile(t, "x")))
		require.NoError(t, a.Close())
		for range 2 {
			_, err := b.Receive(soon(t))
			require.ErrorIs(t, err, ErrPeerLost)
			require.ErrorIs(t, err, unix.ECONNRESET)
			require.NotErrorIs(t, err, io.EOF)
		}
	})
	t.Run("with records unread, having said why", func(t *testing.T) {
		a, b := pair(t)
		require.NoError(t, b.Send(soon(t), []byte("unread")))
		require.NoError(t, a.Send(soon(t), []byte("why"), tempFile(t, "x")))
		require.NoError(t, a.Close())
		rec, err := b.Receive(soon(t))
		require.NoError(t, err, "the reset must not hide the last record")
		require.Equal(t, "why", string(rec.Data))
		require.NoError(t, rec.Close())
		require.ErrorIs(t, errOf(b.Receive(soon(t))), unix.ECONNRESET)
	})
	t.Run("with records unread, having said why, after what looked like the end", func(t *testing.T) {
		a, b := pair(t)
		require.NoError(t, b.Send(soon(t), []byte("unread")))
		require.NoError(t, a.Send(soon(t), []byte("why")))
		require.NoError(t, a.Close())
		var rec Record
		require.NoError(t, b.receiveAgain(errZero, &rec), "the reset must not hide the last record")
		require.Equal(t, "why", string(rec.Data))
		require.ErrorIs(t, errOf(b.Receive(soon(t))), unix.ECONNRESET)
	})
	t.Run("and the sender learns first", func(t *testing.T) {
		a, b := pair(t)
		require.NoError(t, b.Send(soon(t), []byte("unread")))
		require.NoError(t, a.Close())
		require.ErrorIs(t, b.Send(soon(t), []byte("x")), ErrPeerLost)
		require.ErrorIs(t, b.WaitClose(soon(t)), ErrPeerLost, "unread records are not forgotten")
	})
}

// TestLastRecordIsNotLost: what was sent before the close always arrives, though
// the kernel sometimes reports the end first.
func TestLastRecordIsNotLost(t *testing.T) {
	requireNoLeak(t)
	for i := range 5000 {
		a, b, err := NewPair()
		require.NoError(t, err)
		go func() {
			_ = a.Send(soon(t), []byte("last"))
			_ = a.Close()
		}()
		rec, err := b.Receive(soon(t))
		require.NoError(t, err, "round %d", i)
		require.Equal(t, "last", string(rec.Data))
		require.NoError(t, b.WaitClose(soon(t)))
		require.NoError(t, b.Close())
	}
}

// TestReadOnceMore is the same without luck: it plays the kernel's part.
func TestReadOnceMore(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, a.Send(soon(t), []byte("last")))
	var rec Record
	require.NoError(t, a.Close())
	require.NoError(t, b.receiveAgain(errZero, &rec))
	require.Equal(t, "last", string(rec.Data))
	require.ErrorIs(t, b.receiveAgain(errZero, &rec), io.EOF)
}

func TestWaitClose(t *testing.T) {
	requireNoLeak(t)
	t.Run("peer reads, then closes", func(t *testing.T) {
		a, b := pair(t)
		require.NoError(t, a.Send(soon(t), []byte("last")))
		go func() {
			_, _ = b.Receive(soon(t))
			_ = b.Close()
		}()
		require.NoError(t, a.WaitClose(soon(t)))
	})
	t.Run("peer closes without reading", func(t *testing.T) {
		a, b := pair(t)
		require.NoError(t, a.Send(soon(t), []byte("last")))
		require.NoError(t, b.Close())
		require.ErrorIs(t, a.WaitClose(soon(t)), ErrPeerLost)
	})
	t.Run("some records arrive first", func(t *testing.T) {
		a, b := pair(t)
		require.NoError(t, b.Send(soon(t), []byte("x"), tempFile(t, "x")))
		require.NoError(t, rawSend(t, b, make([]byte, MaxRecord+1), nil))
		require.NoError(t, b.Close())
		require.NoError(t, a.WaitClose(soon(t)))
	})
	t.Run("records never end", func(t *testing.T) {
		a, b := pair(t)
		for range maxDiscarded {
			require.NoError(t, b.Send(soon(t), []byte("x"), tempFile(t, "x")))
		}
		require.ErrorIs(t, a.WaitClose(soon(t)), ErrUnexpectedRecord)
	})
}

// TestFault33_SignalStorm: signals interrupt system calls and must not show.
func TestFault33_SignalStorm(t *testing.T) {
	requireNoLeak(t)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1)
			}
		}
	}()
	l, server, client := connected(t)
	f := tempFile(t, "x")
	for range 500 {
		require.NoError(t, client.Send(soon(t), []byte("x"), f))
		rec := received(t, server)
		require.NoError(t, rec.Close())
		again := dialled(t, l.Path())
		accepted := accepted(t, l)
		require.NoError(t, again.Close())
		require.NoError(t, accepted.Close())
	}
	close(stop)
	<-stopped
}

func TestIgnoringEINTR(t *testing.T) {
	answers := []error{unix.EINTR, os.NewSyscallError("recvmsg", unix.EINTR), unix.EPIPE}
	require.ErrorIs(t, ignoringEINTR(func() error {
		answer := answers[0]
		answers = answers[1:]
		return answer
	}), unix.EPIPE)
}

func init() {
	children["no-stdio"] = func([]string) error {
		a, b := childPair()
		defer a.Close()
		defer b.Close()
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		defer w.Close()
		keep := testenv.Got(unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 10)) // for the complaint
		for fd := range 3 {
			testenv.Must(unix.Close(fd))
		}
		defer unix.Close(keep)
		defer unix.Dup3(keep, 2, 0)
		testenv.Must(a.Send(context.Background(), []byte("x"), r, w, w, w))
		rec := testenv.Got(b.Receive(context.Background()))
		if now := leak.OpenFDs(); now[0] == "" || now[1] == "" || now[2] == "" {
			return fmt.Errorf("not on 0 to 2: %v", now)
		}
		if _, err := rec.Files[1].WriteString("through fd 1"); err != nil {
			return err
		}
		buf := make([]byte, 12)
		if _, err := io.ReadFull(rec.Files[0], buf); err != nil || string(buf) != "through fd 1" {
			return fmt.Errorf("read %q, %w", buf, err)
		}
		testenv.Must(rec.Close())
		if now := leak.OpenFDs(); now[1] != "" || now[2] != "" {
			return fmt.Errorf("left open: %v", now)
		}
		return nil
	}
}

func TestFault34_StdioClosed(t *testing.T) { runChild(t, "no-stdio") }
