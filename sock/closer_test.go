package sock

import (
	"context"
	"os"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// stuckCloses has n closes of s hang in c, until free is called or t ends.
func stuckCloses(t *testing.T, c *closer, s sender, n int) (free func()) {
	t.Helper()
	stop, began := make(chan struct{}), make(chan struct{}, n)
	for range n {
		c.close(s, func() { began <- struct{}{}; <-stop }, func() { t.Error("it has to wait in line") })
	}
	for range n {
		<-began
	}
	done := false
	free = func() {
		if !done {
			done = true
			close(stop)
		}
	}
	t.Cleanup(func() {
		free()
		require.Eventually(t, func() bool { return c.underWay() == 0 }, 10*time.Second, time.Millisecond)
	})
	return free
}

// TestCloserBounds: whoever has too many closes that hang waits, one after the other,
// and nobody else does.
//
//fault:rows 72
func TestCloserBounds(t *testing.T) {
	process := sender{1000, 1}
	for name, c := range map[string]struct {
		most          quota
		waits, passes sender
	}{
		"process": {quota{2, 9, 9}, process, sender{1000, 2}},
		"user":    {quota{9, 2, 9}, sender{1000, 2}, sender{1001, 1}},
		"all":     {quota{9, 9, 2}, sender{1001, 1}, sender{}},
	} {
		t.Run(name, func(t *testing.T) {
			q := &closer{most: c.most}
			free := stuckCloses(t, q, process, 2)
			inLine, order := 0, make(chan int, 3)
			for i := range 3 {
				q.close(c.waits, func() { order <- i }, func() { inLine++ })
			}
			require.Equal(t, 3, inLine)
			require.Empty(t, order)
			if c.passes != (sender{}) {
				passed := make(chan struct{})
				q.close(c.passes, func() { close(passed) }, func() { t.Error("it has to wait in line") })
				<-passed
				require.Empty(t, order)
			}
			free()
			if c.most.process == 2 { // else two begin at once
				require.Eventually(t, func() bool { return len(order) == 3 }, 10*time.Second, time.Millisecond)
			}
			require.Eventually(t, func() bool { return q.underWay() == 0 }, 10*time.Second, time.Millisecond)
			require.Len(t, order, 3)
			require.Empty(t, q.lines)
			require.Empty(t, q.busy)
		})
	}
}

// A line is worked off in its order while one close of that sender still hangs.
func TestCloserKeepsOrder(t *testing.T) {
	c := &closer{most: quota{process: 2, user: 9, all: 9}}
	process := sender{1000, 1}
	freeOther := stuckCloses(t, c, process, 1)
	free := stuckCloses(t, c, process, 1)
	order := make(chan int, 10)
	for i := range cap(order) {
		c.close(process, func() { order <- i }, func() {})
	}
	free()
	for i := range cap(order) {
		require.Equal(t, i, <-order)
	}
	freeOther()
}

// All processes of a user who is refused have one share.
//
//fault:rows 72
func TestRefusalsAreBoundedByUser(t *testing.T) {
	c := newRefusals()
	stuckCloses(t, &c, Peer{UID: 1000, PID: 1}.sender().anyProcess(), 16)
	waits, gone := 0, make(chan struct{})
	c.close(Peer{UID: 1000, PID: 2}.sender().anyProcess(), func() {}, func() { waits++ })
	require.Equal(t, 1, waits)
	c.close(Peer{UID: 1001, PID: 2}.sender().anyProcess(), func() { close(gone) }, func() { t.Error("it waits") })
	<-gone
}

// TestHonestFilesPassThoseThatHang: one sender's files that hang keep open only further
// files of that sender.
//
//fault:rows 72
func TestHonestFilesPassThoseThatHang(t *testing.T) {
	needsKernelsControl(t)
	requireNoLeak(t)
	closesWait(t, time.Hour)
	hostile, b := pair(t)
	b.s.from = sender{int64(os.Geteuid()), 2} // of another user nothing comes in that closing waits for
	var springs []func()
	receive := func(c *Conn) *os.File {
		rec := received(t, c)
		require.Len(t, rec.Files, 1)
		return rec.Take(0)
	}
	for range closes.most.process {
		springs = append(springs, sendTrap(t, hostile, []byte("x"), 1))
		DropFiles([]*os.File{receive(b)})
	}
	require.NoError(t, hostile.Send(soon(t), []byte("x"), tempFile(t, "x")))
	late := DropFiles([]*os.File{receive(b)})

	a, honest := pair(t)
	require.NoError(t, a.Send(soon(t), []byte("x"), tempFile(t, "x")))
	file := receive(honest)
	quickly(t, func() { require.NoError(t, CloseFiles([]*os.File{file})) })
	require.ErrorIs(t, file.Close(), os.ErrClosed)
	quickly(t, func() { require.NoError(t, CloseFiles([]*os.File{tempFile(t, "x")})) })

	requireHangs(t, late, func() {
		for _, spring := range springs {
			spring()
		}
	})
}

// A received file is its sender's, and any other is ours. What is known of it goes with it.
func TestSenderOf(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, a.Send(soon(t), []byte("x"), tempFile(t, "x")))
	rec := received(t, b)
	require.Equal(t, b.s.from, senderOf(rec.Files[0]))
	require.Equal(t, ourselves, senderOf(new(os.File)))
	require.Equal(t, ourselves, senderOf(tempFile(t, "x")))
	file := weak.Make(rec.Files[0])
	require.NoError(t, rec.Close())
	require.Eventually(t, func() bool {
		runtime.GC()
		_, known := senders.Load(file)
		return !known
	}, 10*time.Second, time.Millisecond)
}

// TestCloseInLine: a connection whose close has to wait is shut down, unless somebody
// else may have it, too. Connections to others are closed at once.
//
//fault:rows 72
func TestCloseInLine(t *testing.T) {
	requireNoLeak(t)
	hostile := sender{int64(os.Geteuid()), 1}
	free := stuckCloses(t, &closes, hostile, closes.most.process)
	a, b := pair(t)
	c, d := pair(t)
	b.s.from, d.s.from = hostile, hostile
	copied := ok(d.File())(t)
	require.Equal(t, hostile, senderOf(copied))
	bGone, dGone := b.Drop(), d.Drop()
	require.NoError(t, a.WaitHangup(soon(t)))
	require.ErrorIs(t, a.Send(soon(t), []byte("x")), ErrPeerLost)
	require.ErrorIs(t, c.WaitHangup(briefly(t)), context.DeadlineExceeded)
	for _, gone := range []<-chan struct{}{bGone, dGone} {
		require.False(t, isClosed(gone))
	}
	honest, _ := pair(t)
	quickly(t, func() { <-honest.Drop() })
	free()
	quickly(t, func() { <-bGone; <-dGone })
	require.ErrorIs(t, c.WaitHangup(briefly(t)), context.DeadlineExceeded, "the copy is open")
	require.NoError(t, CloseFiles([]*os.File{copied}))
	require.NoError(t, c.WaitHangup(soon(t)))
}

// The connections that are closed leave descriptors for others.
func TestMaxClosing(t *testing.T) {
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.EqualValues(t, min(4096, was.Cur/2), maxClosing())
}
