package sock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/testenv"
)

func init() {
	// It takes the listener over, accepts one connection, and lets it go on when told to.
	children["successor"] = func(args []string) error {
		from := testenv.Got(FromFile(os.NewFile(3, "predecessor")))
		l := testenv.Got(TakeOver(context.Background(), from, args[0]))
		c := testenv.Got(l.Accept(context.Background()))
		testenv.Must(c.Send(context.Background(), fmt.Append(nil, os.Getpid())))
		testenv.Must(c.WaitClose(context.Background()))
		for _, c := range []io.Closer{c, from, l} {
			testenv.Must(c.Close())
		}
		return nil
	}
}

// handedOver hands l over to a Listener of this process.
func handedOver(t testing.TB, l *Listener, opts ...ListenOption) *Listener {
	t.Helper()
	a, b := pair(t)
	given := make(chan error, 1)
	go func() { given <- l.HandOver(soon(t), a) }()
	next := ok(TakeOver(soon(t), b, l.Path(), opts...))(t)
	require.NoError(t, <-given)
	t.Cleanup(func() { require.NoError(t, next.Close()) })
	return next
}

// Those that had connected belong to the predecessor, and those that come later to the
// successor, as the kernel tells them. Who comes in between waits. The successor is
// another process, which the predecessor's Close leaves alone.
//
//fault:rows 85
func TestListenerGoesToAnotherProcess(t *testing.T) {
	requireNoLeak(t)
	dir := safeDir(t)
	l := listenAt(t, filepath.Join(dir, "s"))
	early := dialled(t, l.Path())
	require.EqualValues(t, os.Getpid(), early.Peer().PID)

	a, b := pair(t)
	f := ok(b.File())(t)
	cmd := childCommand(t, "successor", l.Path())
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stderr = os.Stderr
	given := make(chan error, 1)
	go func() { given <- l.HandOver(soon(t), a) }()
	requireOffered(t, b)
	waited := make(chan *Conn, 1)
	go func() {
		c, err := Dial(soon(t), l.Path())
		if err != nil {
			t.Error(err)
		}
		waited <- c
	}()
	require.ErrorIs(t, errOf(Listen(l.Path())), ErrListening)
	require.NoError(t, cmd.Start())
	require.NoError(t, f.Close())
	require.NoError(t, <-given)

	server := accepted(t, l)
	requireWorks(t, early, server)
	require.ErrorIs(t, errOf(l.Accept(soon(t))), ErrHandedOver)
	require.ErrorIs(t, l.HandOver(soon(t), a), ErrHandedOver)
	require.NoError(t, l.Remove())
	require.NoError(t, l.Close())
	requireWorks(t, early, server)
	require.ErrorIs(t, errOf(Listen(l.Path())), ErrListening)

	late := <-waited
	require.NotNil(t, late)
	require.EqualValues(t, cmd.Process.Pid, late.Peer().PID)
	rec := received(t, late)
	require.Equal(t, fmt.Sprint(cmd.Process.Pid), string(rec.Data))
	require.NoError(t, late.Close())
	require.NoError(t, cmd.Wait())
	requireEmptyDir(t, dir)
}

// requireOffered waits until the listener is on its way to b, and nobody gets in.
func requireOffered(t testing.TB, b *Conn) {
	t.Helper()
	require.Eventually(t, func() bool { return b.queued() > 0 }, 10*time.Second, time.Millisecond)
}

// Whoever connects while a listener changes hands, again and again, gets in once. One
// that blocks in connect(2) does, too. Each successor has its own policy, mode and limits.
func TestNobodyIsRefusedWhileAListenerChangesHands(t *testing.T) {
	requireNoLeak(t)
	dir := safeDir(t)
	first := listenAt(t, filepath.Join(dir, "s"), withBacklog(2))
	stop := make(chan struct{})
	var clients, servers sync.WaitGroup
	serve := func(l *Listener) {
		for {
			c, err := l.Accept(context.Background())
			if errors.Is(err, ErrClosed) {
				err = l.Close()
			}
			if c == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err := c.Send(context.Background(), []byte("hello")); err != nil {
				t.Error(err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	for i := range 4 {
		clients.Go(func() {
			for !isClosed(stop) && !t.Failed() {
				if err := greet(first.Path(), i == 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	servers.Go(func() { serve(first) })
	l := first
	for range 50 {
		a, b := pair(t)
		given := make(chan error, 1)
		go func() { given <- l.HandOver(soon(t), a) }()
		next := ok(TakeOver(soon(t), b, first.Path(), withBacklog(2)))(t)
		require.NoError(t, <-given)
		servers.Go(func() { serve(next) })
		l = next
	}
	close(stop)
	clients.Wait()
	require.NoError(t, l.Close())
	servers.Wait()
	requireEmptyDir(t, dir)
}

// greet connects and waits for a word.
func greet(path string, blocking bool) error {
	if blocking {
		return greetBlocking(path)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := Dial(ctx, path)
	if err != nil {
		return err
	}
	_, err = c.Receive(ctx)
	return errors.Join(err, c.Close())
}

// greetBlocking is greet of a program that waits in connect(2).
func greetBlocking(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer closeFDs([]int{fd})
	for _, option := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &unix.Timeval{Sec: 30}); err != nil {
			return err
		}
	}
	if err := ignoringEINTR(func() error { return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) }); err != nil {
		return os.NewSyscallError("connect", err)
	}
	n := 0
	err = ignoringEINTR(func() (err error) {
		n, err = unix.Read(fd, make([]byte, 10))
		return err
	})
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	return err
}
