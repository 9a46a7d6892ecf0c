package sock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/testenv/leak"

	"github.com/gpufd/gpufd/internal/testenv"
)

// limited is a connection whose two ends both take only so much.
func limited(t *testing.T, opt LimitOption) (server, client *Conn) {
	t.Helper()
	l := listenAt(t, filepath.Join(safeDir(t), "s"), opt)
	client = dialled(t, l.Path(), opt)
	server = accepted(t, l)
	return server, client
}

// Both ends hold to their limits, take what is within them and go on after what is
// not.
func TestLimitsOfRecords(t *testing.T) {
	requireNoLeak(t)
	for _, most := range []int{1, 100, 8 << 10, MaxRecord} {
		server, client := limited(t, WithMaxRecord(most))
		for _, c := range []struct{ from, to *Conn }{{client, server}, {server, client}} {
			require.NoError(t, rawSend(t, c.from, make([]byte, most+1), nil))
			_, err := c.to.Receive(soon(t))
			require.ErrorIs(t, err, ErrTruncated)
			require.ErrorContains(t, err, fmt.Sprintf("it has %d bytes, at most %d are taken", most+1, most))
			require.NoError(t, c.from.Send(soon(t), make([]byte, most)))
			rec, err := c.to.Receive(soon(t))
			require.NoError(t, err)
			require.Len(t, rec.Data, most)
		}
	}
}

// A record with too many descriptors never opens more here than are taken, and none
// stays. The connection can only be closed then.
func TestFault21_LimitsOfDescriptors(t *testing.T) {
	needsKernelsControl(t)
	requireNoLeak(t)
	olderKernel(t)
	for _, most := range []int{0, 1, 2, 3, 63, 64} {
		for _, n := range []int{most + 1, most + 2, 253} {
			server, client := limited(t, WithMaxFDs(most))
			requireLimit(t, client, server, most, n)
			requireLimit(t, server, client, most, n)
		}
	}
}

// requireLimit sends most descriptors, which are taken, and then n.
func requireLimit(t *testing.T, from, to *Conn, most, n int) {
	t.Helper()
	f := tempFile(t, "x")
	before := leak.OpenFDs()
	require.NoError(t, rawSend(t, from, []byte("enough"), rightsOf(t, f, most)))
	rec := received(t, to)
	require.Len(t, rec.Files, most)
	for _, got := range rec.Files {
		require.Equal(t, "x", contentOf(t, got))
	}
	require.NoError(t, rec.Close())
	require.NoError(t, rawSend(t, from, []byte("many"), rightsOf(t, f, n)))
	for range 2 {
		rec, err := to.Receive(soon(t))
		require.ErrorIs(t, err, ErrTooManyFDs, "%d where %d are taken", n, most)
		require.ErrorContains(t, err, fmt.Sprintf("at most %d are taken; nothing more can be received", most))
		require.NotErrorIs(t, err, ErrControlTruncated)
		require.Empty(t, rec.Files)
		require.Empty(t, leak.OpenFDs().Since(before))
	}
}

// needsKernelsControl skips where an emulator stands between.
func needsKernelsControl(t *testing.T) {
	t.Helper()
	if os.Getenv("GPUFD_EMULATED") == "1" {
		t.Skip("qemu-user receives with room of its own, and keeps the descriptors that the program has no room for")
	}
}

// Descriptors that are not taken are not installed either, not even for a moment: they come
// with recvmsg, and there they are counted.
func TestDescriptorsThatAreNotTakenAreNotInstalled(t *testing.T) {
	needsKernelsControl(t)
	f := tempFile(t, "x")
	for most := range 10 {
		a, b := pair(t)
		require.NoError(t, rawSend(t, a, []byte("many"), rightsOf(t, f, 20)))
		var control [controlSize]byte
		room := limits{MaxRecord, most}.controlSize()
		require.NoError(t, b.s.control(func(fd int) error {
			_, n, flags, err := recvNow(fd, make([]byte, 10), control[:room], 0)
			fds, perr := parseControl(control[:n])
			defer closeFDs(fds)
			require.NoError(t, perr)
			require.Len(t, fds, most)
			require.NotZero(t, flags&unix.MSG_CTRUNC)
			return err
		}))
	}
}

func init() {
	// receives 5 descriptors where 5 are taken, with room for 2
	children["out-of-fds-within-limits"] = func([]string) error {
		a, b := childPair()
		defer a.Close()
		defer b.Close()
		b.limits.fds = 5
		testenv.Must(limitFDs(2))
		testenv.Must(a.Send(context.Background(), []byte("five"), os.Stderr, os.Stderr, os.Stderr, os.Stderr, os.Stderr))
		if _, err := b.Receive(context.Background()); !isWith(err, ErrControlTruncated, "lost: 2 arrived; raise the limit") || errors.Is(err, ErrTooManyFDs) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	}
}

// TestFault22_OutOfFDsWithinLimits: to be out of descriptors is something else than
// to be sent too many.
func TestFault22_OutOfFDsWithinLimits(t *testing.T) { runChild(t, "out-of-fds-within-limits") }

// TestFault21_WaitClose: what WaitClose discards leaves nothing here, however many
// descriptors it brings.
func TestFault21_WaitClose(t *testing.T) {
	requireNoLeak(t)
	a, b := pair(t)
	f := tempFile(t, "x")
	before := leak.OpenFDs()
	require.NoError(t, b.Send(soon(t), []byte("x"), f))
	require.NoError(t, rawSend(t, b, []byte("x"), rightsOf(t, f, 253)))
	for range 2 {
		require.ErrorIs(t, a.WaitClose(soon(t)), ErrTooManyFDs)
	}
	require.Eventually(t, func() bool { return len(leak.OpenFDs().Since(before)) == 0 }, 10*time.Second, time.Millisecond)
}

// Limits are kept within what makes sense.
func TestLimitsThatMakeNoSense(t *testing.T) {
	for opt, want := range map[string]limits{
		"none":      newOptions(nil).limits,
		"too large": newOptions([]ListenOption{WithMaxRecord(1 << 30), WithMaxFDs(1 << 30)}).limits,
	} {
		require.Equal(t, want, limits{MaxRecord, MaxFDs}, opt)
	}
	require.Equal(t, limits{1, 0}, newOptions([]ListenOption{WithMaxRecord(-1), WithMaxFDs(-1)}).limits)
}

func init() {
	// dials and says what it got, however it ended
	children["dial-refused"] = func(args []string) error {
		c := testenv.Got(Dial(context.Background(), args[0]))
		defer c.Close()
		if err := c.Send(context.Background(), []byte("please")); err != nil && !errors.Is(err, ErrPeerLost) {
			return err
		}
		rec, err := c.Receive(context.Background())
		if args[1] == "" {
			if !errors.Is(err, ErrPeerLost) {
				return fmt.Errorf("got %q, %w", rec.Data, err)
			}
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := c.Receive(context.Background()); !errors.Is(err, ErrPeerLost) {
			return fmt.Errorf("it went on: %w", err)
		}
		return expect(string(rec.Data), args[1])
	}
}

// TestFault53_Farewell: who is not admitted is told what the listener has for it,
// whether it speaks first or not.
func TestFault53_Farewell(t *testing.T) {
	requireNoLeak(t)
	const uid = 12345
	for _, said := range []string{"not you", ""} {
		l := listenAt(t, filepath.Join(safeDir(t), "s"), WithMode(0o666), WithFarewell([]byte(said)))
		for range 3 {
			cmd := childCommand(t, "dial-refused", l.Path(), said)
			asUser(t, cmd, uid, uid)
			done := make(chan error, 1)
			go func() {
				out, err := cmd.CombinedOutput()
				if err != nil {
					err = fmt.Errorf("%w: %s", err, out)
				}
				done <- err
			}()
			require.ErrorIs(t, errOf(l.Accept(soon(t))), ErrNotAdmitted)
			require.NoError(t, <-done)
		}
		mine := dialled(t, l.Path())
		accepted := accepted(t, l)
		requireWorks(t, accepted, mine) // no farewell to who is admitted
		require.NoError(t, mine.Close())
		require.ErrorIs(t, errOf(accepted.Receive(soon(t))), io.EOF)
		require.NoError(t, accepted.Close())
	}
}

func init() {
	// dials many times, and reads only when all are there
	children["dial-many"] = func(args []string) error {
		var conns []*Conn
		for range 100 {
			c := testenv.Got(Dial(context.Background(), args[0]))
			defer c.Close()
			conns = append(conns, c)
		}
		_, _ = io.ReadAll(os.Stdin) // until the listener is done with all
		for i, c := range conns {
			rec, err := c.Receive(context.Background())
			if err != nil || string(rec.Data) != args[1] {
				return fmt.Errorf("connection %d got %q, %w", i, rec.Data, err)
			}
		}
		return nil
	}
}

// TestFault60_FarewellWaitsForNobody: not for peers that do not read either.
func TestFault60_FarewellWaitsForNobody(t *testing.T) {
	requireNoLeak(t)
	l := listenAt(t, filepath.Join(safeDir(t), "s"), WithMode(0o666), WithFarewell([]byte("not you")))
	cmd := childCommand(t, "dial-many", l.Path(), "not you")
	asUser(t, cmd, 12345, 12345)
	stdin, _ := started(t, cmd)
	for range 100 {
		require.ErrorIs(t, errOf(l.Accept(soon(t))), ErrNotAdmitted)
	}
	require.NoError(t, stdin.Close())
	require.NoError(t, cmd.Wait())
}

// Options that are nil change nothing.
func TestNilOptions(t *testing.T) {
	l := listenAt(t, filepath.Join(safeDir(t), "s"), nil, LimitOption(nil), WithMaxFDs(1))
	require.Equal(t, limits{MaxRecord, 1}, l.limits)
	c := ok(Dial(soon(t), l.Path(), nil, LimitOption(nil), WithMaxRecord(7)))(t)
	require.Equal(t, limits{7, MaxFDs}, c.limits)
	require.NoError(t, c.Close())
}
