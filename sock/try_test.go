package sock

import (
	"context"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestTrySendDoesNotWait: with a full queue nothing is sent and the files are
// as they were; with room it is a Send.
func TestTrySendDoesNotWait(t *testing.T) {
	requireNoLeak(t)
	a, b := pair(t)
	f := tempFile(t, "kept")
	n := fill(t, a)
	for range 3 {
		err := a.TrySend([]byte("too much"), f, f)
		require.ErrorIs(t, err, ErrWouldWait)
		require.ErrorIs(t, err, unix.EAGAIN)
		require.NotErrorIs(t, err, ErrPeerLost)
	}
	require.Equal(t, "kept", contentOf(t, f))
	for range n {
		rec := received(t, b)
		require.Empty(t, rec.Files)
	}
	require.ErrorIs(t, errOf(b.Receive(briefly(t))), context.DeadlineExceeded, "what was refused was not sent")

	require.NoError(t, a.TrySend([]byte("two"), f, f))
	rec := received(t, b)
	require.Equal(t, "two", string(rec.Data))
	require.Len(t, rec.Files, 2)
	require.Equal(t, "kept", contentOf(t, rec.Files[1]))
	require.NoError(t, rec.Close())
	require.Equal(t, "kept", contentOf(t, f), "the caller keeps its files")
}

// TestTrySendDoesNotWaitForItsTurn: a Send that waits is not overtaken.
func TestTrySendDoesNotWaitForItsTurn(t *testing.T) {
	a, b := pair(t)
	n := fill(t, a)
	sent := make(chan error)
	go func() { sent <- a.Send(soon(t), []byte("first")) }()
	require.Eventually(t, func() bool { return len(a.s.write.turn) == 1 }, 10*time.Second, time.Millisecond)
	err := a.TrySend([]byte("second"))
	require.ErrorIs(t, err, ErrWouldWait)
	require.ErrorContains(t, err, "another one is under way")
	for range n {
		_ = received(t, b)
	}
	require.NoError(t, <-sent)
	rec := received(t, b)
	require.Equal(t, "first", string(rec.Data))
	require.NoError(t, a.TrySend([]byte("third")), "the turn is free again")
	rec = received(t, b)
	require.Equal(t, "third", string(rec.Data))
}

// TestTrySendErrors: but for waiting, they are those of Send, and the turn is
// given back after each.
func TestTrySendErrors(t *testing.T) {
	requireNoLeak(t)
	a, b := pair(t)
	f, closed := tempFile(t, "x"), tempFile(t, "closed")
	require.NoError(t, closed.Close())
	require.ErrorIs(t, a.TrySend(nil), ErrEmptyRecord)
	require.ErrorIs(t, a.TrySend(make([]byte, MaxRecord+1)), ErrTooLong)
	require.ErrorIs(t, a.TrySend([]byte("x"), slices.Repeat([]*os.File{f}, MaxFDs+1)...), ErrTooManyFDs)
	require.ErrorIs(t, a.TrySend([]byte("x"), f, closed), os.ErrClosed)
	requireWorks(t, a, b)

	require.NoError(t, b.Close())
	err := a.TrySend([]byte("x"), f)
	require.ErrorIs(t, err, ErrPeerLost)
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "send", e.Op)
	require.ErrorIs(t, errOf(a.Receive(soon(t))), io.EOF)

	require.NoError(t, a.Close())
	require.ErrorIs(t, a.TrySend([]byte("x"), f), ErrClosed)
	require.Equal(t, "x", contentOf(t, f))
}

// TestTrySendToAResetPeer: who closed with records unread is lost in the same
// words from then on.
func TestTrySendToAResetPeer(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, a.TrySend([]byte("unread")))
	require.NoError(t, b.Close())
	require.ErrorIs(t, a.TrySend([]byte("x")), ErrPeerLost)
	_, err := a.Receive(soon(t))
	require.ErrorIs(t, err, ErrPeerLost)
	require.ErrorIs(t, err, unix.ECONNRESET)
}
