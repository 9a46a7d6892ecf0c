package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

var errWhy = errors.New("why")

// A blocking is a call that blocks until its context is done, or its owner, such as a server or
// lease, is closed.
type blocking struct {
	call   func(ctx context.Context) error
	blocks func()       // comes back when it does
	ends   error        // what it returns when it is given up; nil is no error
	close  func() error // of its owner, or nil if it has none
	closed error        // what it returns then
	after  func()       // the others are unharmed; may be nil
}

// after10ms is for a call of which nobody can tell that it blocks.
func after10ms() { time.Sleep(10 * time.Millisecond) }

func report(a *Attachment, ctx context.Context) error { return a.Report(ctx, nil) }

func progress(a *Attachment, ctx context.Context) error { return a.Progress(ctx, 1, 2) }

// telling is a call of an attachment, whose producer stays there.
func telling(t *testing.T, att *Attachment, call func(*Attachment, context.Context) error, blocks func()) blocking {
	return blocking{call: func(ctx context.Context) error { return call(att, ctx) },
		blocks: blocks, ends: errWhy, close: att.Close, closed: ErrClosed, after: func() { require.NoError(t, att.Err()) }}
}

// blockingCalls make every call of this package that blocks do so, at each step.
var blockingCalls = map[string]func(t *testing.T, spy *spy, dev *cu.Device, ctx *cu.Context) blocking{
	"Attach to a full backlog": func(t *testing.T, _ *spy, dev *cu.Device, _ *cu.Context) blocking {
		return blocking{call: attachOnce(fullBacklog(t), dev), blocks: after10ms, ends: errWhy}
	},
	"Attach to one who stops between its records": func(t *testing.T, _ *spy, dev *cu.Device, ctx *cu.Context) blocking {
		tr := truthOf(t, ctx)
		path, blocks := silent(t, tr.say(func(o *wire.Offer) { o.FDs = 2 }, tr.files[:2]...))
		return blocking{call: attachOnce(path, dev), blocks: blocks, ends: errWhy}
	},
	"Attach to what is expected": func(t *testing.T, _ *spy, dev *cu.Device, ctx *cu.Context) blocking {
		srv := listen(t)
		expect(srv, "data")
		return blocking{call: attachOnce(srv.Path(), dev), ends: errWhy, close: srv.Close, closed: ErrRefused,
			blocks: func() { awaitWaiting(t, srv, 1) },
			after: func() {
				awaitWaiting(t, srv, 0)
				put(t, srv, newBuffer(t, ctx, 1))
				requireServed(t, srv, ctx)
			}}
	},
	"Attach to what is prepared": func(t *testing.T, spy *spy, dev *cu.Device, ctx *cu.Context) blocking {
		srv := listen(t)
		p, s := prepared(t, srv, "data", newBuffer(t, ctx, 1), cu.ReadOnly, OfferOptions{Verdict: true})
		mapped := make(chan struct{})
		spy.at("access", func() { close(mapped) })
		return blocking{call: attachOnce(srv.Path(), dev), ends: errWhy, close: srv.Close, closed: ErrWithdrawn,
			blocks: func() { <-mapped },
			after: func() {
				require.ErrorContains(t, s.await(t, Ended, 1).Err, "attaching failed: ")
				s.start(t, "data", p.offer)
				requireServed(t, srv, ctx)
			}}
	},
	"Progress to one who does not read": func(t *testing.T, _ *spy, dev *cu.Device, ctx *cu.Context) blocking {
		return telling(t, deaf(t, dev, ctx), progress, after10ms)
	},
	"Report to one who does not read": func(t *testing.T, _ *spy, dev *cu.Device, ctx *cu.Context) blocking {
		return telling(t, deaf(t, dev, ctx), report, after10ms)
	},
	"Report to one who does not answer": func(t *testing.T, _ *spy, dev *cu.Device, ctx *cu.Context) blocking {
		att, read := mute(t, dev, ctx, 2) // mapped, verdict
		return telling(t, att, report, func() { <-read })
	},
	"List of one who says nothing": func(t *testing.T, _ *spy, _ *cu.Device, _ *cu.Context) blocking {
		path, blocks := silent(t)
		call := func(ctx context.Context) error { return errOf(List(ctx, path, nil)) }
		return blocking{call: call, blocks: blocks, ends: errWhy}
	},
	"Offer to one who does not answer": func(t *testing.T, _ *spy, dev *cu.Device, ctx *cu.Context) blocking {
		srv, buf := listen(t), newBuffer(t, ctx, 1)
		expect(srv, "data")
		hears := hearing(t, early(t, srv, wants(dev)))
		b := offering1(t, srv, buf, func() { require.IsType(t, wire.Offer{}, <-hears) })
		b.after = func() { require.IsType(t, wire.Revoke{}, <-hears) }
		return b
	},
	"Offer to one who does not read": func(t *testing.T, _ *spy, dev *cu.Device, ctx *cu.Context) blocking {
		srv, buf := listen(t), manyRecords(t, dev)
		expect(srv, "data")
		conn := early(t, srv, wants(dev))
		clog(t, srv, waiting(srv)[0])
		heard(t, conn)
		return offering1(t, srv, buf, func() {}, OfferOptions{Data: largeData, terms: goodbyeIn(1, brief)})
	},
	"Offer of memory that is worked on": func(t *testing.T, spy *spy, dev *cu.Device, ctx *cu.Context) blocking {
		srv, buf := listen(t), newBuffer(t, ctx, 1)
		h := holding(t, ctx, buf)
		expect(srv, "data")
		hears := hearing(t, early(t, srv, wants(dev)))
		b := offering1(t, srv, buf, nil)
		b.blocks, b.ends = asks(t, spy), nil // it is closed
		b.after = func() {
			require.Equal(t, wire.RefusedName, (<-hears).(wire.Refuse).Code, "there is none")
			require.NoError(t, h.letGo())
		}
		return b
	},
	"Offer of prepared memory that is worked on": func(t *testing.T, spy *spy, dev *cu.Device, ctx *cu.Context) blocking {
		srv, buf := listen(t), newBuffer(t, ctx, 1)
		h := holding(t, ctx, buf)
		p, s := prepared(t, srv, "data", buf, cu.ReadOnly)
		hears := hearing(t, asked(t, srv, wants(dev)))
		require.True(t, (<-hears).(wire.Offer).Pending)
		return blocking{call: p.offer, blocks: asks(t, spy), ends: errWhy, close: srv.Close, closed: ErrClosed,
			after: func() {
				require.IsType(t, wire.Revoke{}, <-hears, "and not that the data is there")
				require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrWithdrawn)
				require.NoError(t, h.letGo())
				require.NoError(t, p.Close())
			}}
	},
}

func attachOnce(path string, dev *cu.Device, opts ...AttachOptions) func(context.Context) error {
	return func(ctx context.Context) error {
		att, err := Attach(ctx, path, "data", dev, first(opts))
		return errors.Join(err, att.Close())
	}
}

// hearing is what a consumer hears that says nothing and goes when it is told to.
func hearing(t *testing.T, conn *sock.Conn) <-chan wire.Message {
	c, ctx := make(chan wire.Message, 8), soon(t)
	go func() {
		defer close(c)
		for {
			m, files, err := hearer(conn).Receive(ctx, true)
			if err != nil {
				return
			}
			_ = sock.CloseFiles(files)
			c <- m
			switch m.(type) {
			case wire.Revoke, wire.Refuse:
				_ = conn.Close()
				return
			}
		}
	}()
	return c
}

// offering1 offers buf; blocks comes back when a consumer is where it should be.
func offering1(t *testing.T, srv *Server, buf *vmm.Buffer, blocks func(), opts ...OfferOptions) blocking {
	return blocking{
		call: func(ctx context.Context) error { return offerFor(ctx, srv, "data", buf, cu.ReadWrite, opts...) },
		blocks: func() {
			require.Eventually(t, func() bool { return offered(srv, "data") }, 30*time.Second, 100*time.Microsecond)
			blocks()
		},
		close: srv.Close, closed: ErrClosed,
		after: func() {
			require.Empty(t, leasesAs(srv, "data"))
			require.False(t, offered(srv, "data"))
		},
	}
}

// asks waits until the driver is asked again and again whether its work is done.
func asks(t *testing.T, spy *spy) func() {
	before := spy.count("")
	return func() {
		require.Eventually(t, func() bool { return spy.count("") > before+10 }, 30*time.Second, 100*time.Microsecond)
	}
}

// awaitWaiting waits until so many wait for an offer.
func awaitWaiting(t *testing.T, srv *Server, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return len(waiting(srv)) == n }, 30*time.Second, 100*time.Microsecond)
}

// fullBacklog is where nobody accepts, and no more can wait for that.
func fullBacklog(t *testing.T) (path string) {
	path = socketPath(t)
	fd := ok(unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { require.NoError(t, errors.Join(unix.Close(fd), unix.Unlink(path))) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	require.NoError(t, unix.Listen(fd, 1))
	for {
		full, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		conn, err := sock.Dial(full, path)
		cancel()
		if err != nil {
			return path
		}
		t.Cleanup(func() { require.NoError(t, conn.Close()) })
	}
}

// silent is a producer that says that and no more.
func silent(t *testing.T, lies ...lie) (path string, said func()) {
	c := make(chan struct{})
	path = impostor(t, func(conn *sock.Conn) {
		for _, l := range lies {
			_ = conn.Send(soon(t), l.record, l.files...)
		}
		close(c)
		_ = conn.WaitClose(soon(t))
	})
	return path, func() { <-c }
}

// mute returns an attachment to a producer that says nothing any more, and reads so many records:
// then read is closed.
func mute(t *testing.T, dev *cu.Device, ctx *cu.Context, records int) (att *Attachment, read chan struct{}) {
	t.Helper()
	tr := truthOf(t, ctx)
	read, stop := make(chan struct{}), make(chan struct{})
	path := impostor(t, func(conn *sock.Conn) {
		l := tr.say(nil, tr.files...)
		_ = conn.Send(soon(t), l.record, l.files...)
		for range records {
			if rec, err := conn.Receive(soon(t)); err == nil {
				_ = rec.Close()
			}
		}
		close(read)
		<-stop
	})
	t.Cleanup(func() { close(stop) })
	att = ok(Attach(soon(t), path, "", dev, nil))(t)
	t.Cleanup(func() { require.NoError(t, att.Close()) })
	return att, read
}

// deaf is attached to a producer that reads nothing any more, and whose queue is
// full.
func deaf(t *testing.T, dev *cu.Device, ctx *cu.Context) *Attachment {
	att, _ := mute(t, dev, ctx, 0)
	var err error
	for err == nil {
		err = att.now.Load().transport.Conn.TrySend(wire.Encode(wire.Progress{Done: 1, Total: 2}))
	}
	require.ErrorIs(t, err, sock.ErrWouldWait)
	return att
}

// TestFault64_Cancel: every blocking call ends soon with its context, says why, and
// leaves nothing; the others are unharmed. The Close of its owner ends it in the same way.
func TestFault64_Cancel(t *testing.T) {
	warmUp(t)
	for name, prepare := range blockingCalls {
		for _, when := range []string{"before", "cancelled", "closed"} {
			t.Run(name+", "+when, func(t *testing.T) {
				spy, dev, driver := spied(t)
				b := prepare(t, spy, dev, driver)
				ctx, cancel := context.WithCancelCause(context.Background())
				defer cancel(nil)
				want, result := b.ends, make(chan error, 1)
				switch when {
				case "before":
					cancel(errWhy)
					require.ErrorIs(t, b.call(ctx), want)
					return // the others have nothing to notice
				case "closed":
					if b.close == nil {
						return
					}
					want = b.closed
				}
				go func() { result <- b.call(ctx) }()
				b.blocks()
				require.Empty(t, result, "it does not block")
				begun := time.Now()
				if when == "closed" {
					require.NoError(t, b.close())
				} else {
					cancel(errWhy)
				}
				err := <-result
				require.Less(t, time.Since(begun), 10*time.Second)
				require.ErrorIs(t, err, want)
				if when == "cancelled" && want == errWhy {
					require.ErrorIs(t, err, context.Canceled)
				}
				if when == "cancelled" && b.after != nil {
					b.after()
				}
			})
		}
	}
}

// A consumer that gives up at some step of attaching gets nothing, and a producer
// that has begun to send its offer is told.
func TestFault64_CancelAtEachStepOfAttaching(t *testing.T) {
	for _, when := range []string{"connected", "received", "import", "reserve", "map", "access", "access, pending"} {
		t.Run(when, func(t *testing.T) {
			spy, dev, ctx := spied(t)
			srv := listen(t)
			p, s := prepared(t, srv, "data", newBuffer(t, ctx, 1), cu.ReadOnly, OfferOptions{Verdict: true})
			step, pending := strings.CutSuffix(when, ", pending")
			if !pending {
				s.start(t, "data", p.offer)
			}
			until, cancel := context.WithCancelCause(context.Background())
			at := func(now string) {
				if now == step {
					cancel(errWhy)
				}
			}
			spy.onStep(at)
			err := errOf(Attach(until, srv.Path(), "data", dev,
				&AttachOptions{OnConnected: func(p sock.Peer) {
					require.Equal(t, pid(), p.PID)
					at("connected")
				}, OnReceived: func(o OfferInfo, files []*os.File) {
					require.Equal(t, "data", o.Name)
					require.Len(t, files, 1)
					at("received")
				}}))
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
				s.start(t, "data", p.offer)
			}
			requireServed(t, srv, ctx)
		})
	}
}

// A producer that gives up, or closes its server, at some step of a lease returns from
// Offer, and the consumer is told, or has lost it. Nothing else is left of either.
func TestFault64_CancelAtEachStepOfALease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for n := range 4 {
		closes, pending := n&1 != 0, n&2 != 0
		for when := Connected; when <= Ended; when++ {
			t.Run(fmt.Sprintf("%s, pending %v, closes %v", when, pending, closes), func(t *testing.T) {
				srv := listen(t)
				expect(srv, "data")
				until, cancel := context.WithCancelCause(context.Background())
				closed := make(chan error, 1)
				stop := sync.OnceFunc(func() {
					if !closes {
						cancel(errWhy)
						closed <- nil
						return
					}
					go func() { closed <- srv.Close() }() // which an observer must not wait for
					for !isServerClosed(srv) {
						runtime.Gosched()
					}
				})
				observer := OfferOptions{OnEvent: func(e Event) {
					expect(srv, "more") // it may call the server
					working(srv, "more", 1, 2)
					if e.Kind == when {
						stop()
					}
				}}
				offer := func(ctx context.Context) error { return offerFor(ctx, srv, "data", buf, cu.ReadOnly, observer) }
				if pending { // synchronized, or else it may end in the wait for work
					observer.Synchronized = true
					offer = ok(prepare(srv, "data", buf, cu.ReadOnly, observer))(t).offer
				}
				consumer := make(chan error, 1)
				go func() {
					att, err := Attach(soon(t), srv.Path(), "data", dev, nil)
					if err == nil {
						err = errors.Join(att.Progress(soon(t), 1, 2), att.Report(soon(t), nil))
					}
					consumer <- errors.Join(err, att.Close())
				}()
				switch err := offer(until); {
				case closes:
					require.ErrorIs(t, err, ErrClosed)
				case pending && errors.Is(err, errWhy): // canceled before Publish was called
				default:
					require.NoError(t, err)
				}
				require.NoError(t, <-closed)
				err := <-consumer
				lost := errors.Is(err, ErrWithdrawn) || errors.Is(err, ErrRefused) || errors.Is(err, sock.ErrPeerLost) || errors.Is(err, sock.ErrNoListener)
				if !lost || when == Verdict || when == Ended { // it has been heard
					require.NoError(t, err)
				}
			})
		}
	}
}

// Steps that are not cancelled end by themselves when the producer takes too long.
func TestProducerThatTakesTooLong(t *testing.T) {
	dev, ctx := leavesNothing(t)
	require.ErrorIs(t, errOf(Attach(soon(t), fullBacklog(t), "", dev, &AttachOptions{Timeout: 20 * time.Millisecond})), ErrTimeout)

	att, _ := mute(t, dev, ctx, 2) // mapped, verdict
	is := att.now.Load()
	brisk := *is.transport
	brisk.Timeout = brief
	hurried := &Attachment{memory: att.memory, last: func() {}}
	hurried.now.Store(&leaseConn{transport: &brisk, offer: is.offer, done: is.done})
	require.ErrorIs(t, hurried.Report(soon(t), nil), ErrTimeout)
	require.NoError(t, att.Err(), "the producer is still there")
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
	att := ok(Attach(soon(t), path, "", dev, nil))(t)
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

// A context may have the end of another connection for its cause. That says nothing of this one, which goes on.
func TestEndOfAnotherConnectionIsNoEnd(t *testing.T) {
	for _, cause := range []error{ErrClosed, sock.ErrPeerLost} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		err := plain.ContextErr(ctx)
		require.ErrorIs(t, err, cause)
		require.Equal(t, err, (&leaseConn{}).ended(err))
	}
}
