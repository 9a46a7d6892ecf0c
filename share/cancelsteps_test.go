package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/sock"
)

// A consumer that gives up at some step of attaching gets nothing, and a producer
// that has begun to send its offer is told.
func TestFault64_CancelAtEachStepOfAttaching(t *testing.T) {
	spy, dev, ctx := spied(t)
	for _, pending := range []bool{false, true} {
		for _, when := range []string{"connected", "received", "import", "reserve", "map", "access"} {
			t.Run(fmt.Sprintf("%s, pending %v", when, pending), func(t *testing.T) {
				leavesNothing(t)
				srv := listen(t)
				p, s := prepared(t, srv, "data", newBuffer(t, ctx, 1), ReadOnly, WithVerdict())
				if !pending {
					s.start(t, "data", p.Offer)
				}
				until, cancel := context.WithCancelCause(context.Background())
				at := func(step string) {
					if step == when {
						cancel(errWhy)
					}
				}
				spy.onStep(at)
				_, err := Attach(until, srv.Path(), "data", dev,
					OnConnected(func(sock.Peer) { at("connected") }),
					OnReceived(func(Offer, []*os.File) { at("received") }))
				require.ErrorIs(t, err, errWhy)
				require.ErrorIs(t, err, context.Canceled)
				if when == "connected" {
					require.ErrorIs(t, s.await(t, PeerRefused, 1).Err, sock.ErrPeerLost)
				} else {
					told := s.await(t, Ended, 1).Err
					require.ErrorIs(t, told, ErrVerdict)
					require.ErrorContains(t, told, "attaching failed: ")
				}
				if pending {
					s.start(t, "data", p.Offer)
				}
				requireServed(t, srv, ctx)
			})
		}
	}
}

// A producer that gives up, or closes its server, at some step of a lease returns from
// Offer, and the consumer is told, or has lost it. Nothing else is left of either.
func TestFault64_CancelAtEachStepOfALease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for _, closes := range []bool{false, true} {
		for _, pending := range []bool{false, true} {
			for when := Offered; when <= Ended; when++ {
				t.Run(fmt.Sprintf("%s, pending %v, closes %v", when, pending, closes), func(t *testing.T) {
					srv := listen(t)
					srv.Expect("data")
					until, cancel := context.WithCancelCause(context.Background())
					closed := make(chan error, 1)
					stop := sync.OnceFunc(func() {
						if closes {
							go func() { closed <- srv.Close() }() // which an observer must not wait for
							for !errors.Is(srv.HandOver(context.Background(), nil), ErrClosed) {
								runtime.Gosched()
							}
							return
						}
						cancel(errWhy)
						closed <- nil
					})
					observer := OnEvent(func(e Event) {
						if e.Kind == when {
							stop()
						}
					})
					offer := func(ctx context.Context) error { return srv.Offer(ctx, "data", buf, ReadOnly, observer) }
					if pending {
						p, err := srv.Prepare("data", buf, ReadOnly, observer, WithSynchronized()) // or else it may end in the wait for work
						require.NoError(t, err)
						offer = p.Offer
					}
					consumer := make(chan error, 1)
					go func() {
						att, err := Attach(soon(t), srv.Path(), "data", dev)
						if err == nil {
							err = errors.Join(att.Progress(soon(t), 1, 2), att.Report(soon(t), nil))
						}
						consumer <- errors.Join(err, att.Close())
					}()
					err := offer(until)
					if closes {
						require.ErrorIs(t, err, ErrClosed)
					} else {
						require.NoError(t, err)
					}
					require.NoError(t, <-closed)
					switch err := <-consumer; {
					case when == Verdict || when == Ended:
						require.NoError(t, err, "it has been heard")
					case err != nil && !errors.Is(err, ErrRevoked) && !errors.Is(err, ErrRefused) &&
						!errors.Is(err, sock.ErrPeerLost) && !errors.Is(err, sock.ErrNoListener):
						require.NoError(t, err)
					}
				})
			}
		}
	}
}

// Steps that are not cancelled end by themselves when the producer takes too long.
func TestProducerThatTakesTooLong(t *testing.T) {
	dev, ctx := leavesNothing(t)
	require.ErrorIs(t, errOf(Attach(soon(t), fullBacklog(t), "", dev, WithTimeout(20*time.Millisecond))), ErrTimeout)

	tr := truthOf(t, ctx)
	path := impostor(t, func(conn *sock.Conn) {
		l := tr.say(nil, tr.files...)
		_ = conn.Send(soon(t), l.record, l.files...)
		for range 2 { // mapped, verdict
			if rec, err := conn.Receive(soon(t)); err == nil {
				_ = rec.Close()
			}
		}
		_ = conn.WaitClose(soon(t))
	})
	att := ok(Attach(soon(t), path, "data", dev))(t)
	is := att.now.Load()
	brisk := *is.transport
	brisk.Timeout = brief
	hurried := &Attachment{memory: att.memory, last: func() {}}
	hurried.now.Store(&leaseConn{transport: &brisk, offer: is.offer, done: is.done})
	require.ErrorIs(t, hurried.Report(soon(t), nil), ErrTimeout)
	require.NoError(t, att.Err(), "the producer is still there")
	require.NoError(t, att.Close())
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
	att := ok(Attach(soon(t), path, "", dev))(t)
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
