package share

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/sock"
)

// FAULTS 64: every call that waits is given up with its context, and leaves
// nothing. The producer's side of each is an impostor that says when the
// consumer waits.

func TestFault64_CancelWhileWaitingForTheOffer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	half := tr.say(func(o *offer) { o.fds = 2 }, tr.files[:2]...)
	for name, lies := range map[string][]lie{"none of it": nil, "half of it": {half}} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			why := errors.New("why")
			waits, cancel := context.WithCancelCause(context.Background())
			path := impostor(t, func(conn *sock.Conn) {
				for _, l := range lies {
					_ = conn.Send(soon(t), l.record, l.files...)
				}
				cancel(why)
				_ = conn.WaitClose(soon(t))
			})
			_, err := Attach(waits, path, "", dev)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, why)
		})
	}
}

func TestFault64_CancelBeforeAttaching(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t)
	serve(t, srv, newBuffer(t, ctx, 1))
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Attach(gone, srv.Path(), "", dev)
	require.ErrorIs(t, err, context.Canceled)
	requireServed(t, srv, ctx)
}

// A listener whose backlog is full and that accepts nobody.
func TestFault64_CancelWhileConnecting(t *testing.T) {
	dev, _ := leavesNothing(t)
	l, err := sock.Listen(socketPath(t), sock.WithBacklog(1))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	for {
		full, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		conn, err := sock.Dial(full, l.Path())
		cancel()
		if err != nil {
			break
		}
		t.Cleanup(func() { require.NoError(t, conn.Close()) })
	}
	_, err = Attach(briefly(t), l.Path(), "", dev)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = Attach(soon(t), l.Path(), "", dev, WithStepTimeout(20*time.Millisecond))
	require.ErrorIs(t, err, ErrTimeout)
}

// A producer that takes the verdict and neither answers nor goes.
func TestFault64_CancelWhileReporting(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	read := make(chan struct{})
	path := impostor(t, func(conn *sock.Conn) {
		l := tr.say(nil, tr.files...)
		_ = conn.Send(soon(t), l.record, l.files...)
		for range 2 { // mapped, verdict
			rec, err := conn.Receive(soon(t))
			if err == nil {
				_ = rec.Close()
			}
		}
		close(read)
		_ = conn.WaitClose(soon(t))
	})
	att, err := Attach(soon(t), path, "", dev, WithStepTimeout(50*time.Millisecond))
	require.NoError(t, err)
	waits, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, att.Report(waits, nil), context.Canceled, "before it is sent")
	require.ErrorIs(t, att.Report(soon(t), nil), ErrTimeout)
	<-read
	require.NoError(t, att.Err(), "the producer is still there")
	require.NoError(t, att.Close())
}

// A producer that reads nothing any more: the socket fills up.
func TestFault64_CancelWhileShowingProgress(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	stop := make(chan struct{})
	path := impostor(t, func(conn *sock.Conn) {
		l := tr.say(nil, tr.files...)
		_ = conn.Send(soon(t), l.record, l.files...)
		<-stop
	})
	att, err := Attach(soon(t), path, "", dev)
	require.NoError(t, err)
	for limited := briefly(t); err == nil; {
		err = att.Progress(limited, 1, 2)
	}
	require.ErrorIs(t, err, context.DeadlineExceeded)
	close(stop)
	require.NoError(t, att.Close())
}

// Closing from elsewhere ends a Report that waits.
func TestFault64_CloseWhileReporting(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	read := make(chan struct{})
	path := impostor(t, func(conn *sock.Conn) {
		l := tr.say(nil, tr.files...)
		_ = conn.Send(soon(t), l.record, l.files...)
		for range 2 {
			rec, err := conn.Receive(soon(t))
			if err == nil {
				_ = rec.Close()
			}
		}
		close(read)
		_ = conn.WaitClose(soon(t))
	})
	att, err := Attach(soon(t), path, "", dev)
	require.NoError(t, err)
	result := make(chan error)
	go func() { result <- att.Report(soon(t), nil) }()
	<-read
	require.NoError(t, att.Close())
	require.ErrorIs(t, <-result, ErrClosed)
}

// A producer that dies with the verdict unread has not read it.
func TestUnreadVerdictIsNotReported(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	path := impostor(t, func(conn *sock.Conn) {
		l := tr.say(nil, tr.files...)
		_ = conn.Send(soon(t), l.record, l.files...)
		rec, err := conn.Receive(soon(t)) // mapped
		if err == nil {
			_ = rec.Close()
		}
		untilReadable(conn) // the verdict is there, and stays there
	})
	att, err := Attach(soon(t), path, "", dev)
	require.NoError(t, err)
	require.ErrorIs(t, att.Report(soon(t), nil), sock.ErrPeerLost)
	require.NoError(t, att.Close())
}

func untilReadable(conn *sock.Conn) {
	f, err := conn.File()
	if err != nil {
		return
	}
	defer f.Close()
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			for {
				if _, err := unix.Poll(fds, -1); err != unix.EINTR {
					return
				}
			}
		})
	}
}

// Offer ends with its context, whatever its consumers are doing.
func TestFault64_CancelWhileOffering(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t)
	buf := newBuffer(t, ctx, 1)
	s := serve(t, srv, buf, WithVerdict())
	asleep := dialed(t, srv) // has asked and reads nothing
	require.NoError(t, asleep.Send(soon(t), encode(attach{dev.Driver().Kind(), ReadOnly, ""})))
	s.await(t, Sent, 1)
	s.cancel()
	require.NoError(t, s.end(t))
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrRevoked)
}

// An offer that still waits for work on its memory ends like any other: with
// its context, and with the server.
func TestFault64_OfferThatWaitsForWorkEnds(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	buf := newBuffer(t, ctx, 4096)
	require.NoError(t, cu.CopyToDevice(ctx, nil, buf.Ptr(), []uint32{0}))
	waits, err1 := ctx.NewStream()
	writes, err2 := ctx.NewStream()
	require.NoError(t, errors.Join(err1, err2, waits.WaitValue32(buf.Ptr(), 1, cu.WaitEQ)))
	free := sync.OnceValue(func() error { return writes.WriteValue32(buf.Ptr(), 1, cu.WriteDefault) })
	defer time.AfterFunc(10*time.Second, func() { _ = free() }).Stop() // so that a failure ends

	srv := listen(t)
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, srv.Offer(short, "data", buf, ReadOnly), context.DeadlineExceeded)

	offered := make(chan error, 1)
	go func() { offered <- srv.Offer(context.Background(), "data", buf, ReadOnly) }()
	time.AfterFunc(20*time.Millisecond, func() { _ = srv.Close() })
	require.ErrorIs(t, <-offered, ErrClosed)
	done, err := waits.Query()
	require.NoError(t, err)
	require.False(t, done, "the work is as it was")
	require.NoError(t, free())
	require.NoError(t, errors.Join(waits.Synchronize(soon(t)), waits.Close(), writes.Close()))
}
