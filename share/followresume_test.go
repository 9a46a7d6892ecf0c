package share

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/sock"
)

// A bereft is a Follow whose producer is killed. The test's process has the memory, too, to
// offer it on.
type bereft struct {
	path   string
	from   *Attachment // as a successor has it
	found  chan seen
	cancel func() error
	att    *Attachment // that the body of Follow has
	v1     *child
}

func follows(t *testing.T, dev *cu.Device, ctx *cu.Context, opts ...AttachOption) *bereft {
	t.Helper()
	b := &bereft{path: socketPath(t)}
	t.Cleanup(func() { _, _ = os.Remove(b.path), os.Remove(b.path+".lock") }) // the killed producer's
	b.v1 = start(t, "producer", b.path, "4")
	b.v1.says(t, "listening")
	b.from = attachedAt(t, b.path, dev, WithReoffer(), WithAccess(ReadWrite))
	b.found, b.cancel = followed(t, ctx, b.path, opts...)
	b.att = (<-b.found).att
	awaitRead(t, b.att.now.Load().transport.Conn)
	return b
}

// loses kills the producer, and returns when that is known.
func (b *bereft) loses(t *testing.T) {
	t.Helper()
	lease := b.att.now.Load().done
	b.v1.kill()
	select {
	case <-lease:
	case <-soon(t).Done():
		require.FailNow(t, "the lease does not end")
	}
}

// successor is a server in the producer's place, which expects what it is to offer.
func (b *bereft) successor(t *testing.T) *Server {
	t.Helper()
	srv := ok(Listen(b.path))(t)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	srv.Expect("data")
	return srv
}

// nobodyFollows fails if the body is called again.
func (b *bereft) nobodyFollows(t *testing.T) {
	t.Helper()
	select {
	case <-b.found:
		require.FailNow(t, "the body is called again")
	case <-time.After(20 * time.Millisecond):
	}
}

// If a successor offers the same memory, even after the predecessor was killed, a follower goes
// on undisturbed. The body has the same attachment, mapping, context and notices, and only the
// lease is another one.
//
//fault:rows 85
func TestFollowGoesOnWithTheSameMemory(t *testing.T) {
	dev, ctx := leavesNothing(t)
	connected := 0
	b := follows(t, dev, ctx, OnConnected(func(sock.Peer) { connected++ }))
	at, notices, fenced, superseded := b.att.Ptr(), b.att.Notices(), b.att.Fenced(), b.att.Superseded()
	b.loses(t)
	require.NoError(t, b.att.Err(), "it is without a lease")
	require.NoError(t, b.att.Context().Err())
	require.ErrorIs(t, b.att.Notify(soon(t), []byte("who is there")), sock.ErrPeerLost)
	require.NoError(t, b.att.AwaitFence(soon(t), Fenced), "the producer that was lost")
	require.ErrorContains(t, errOf(b.att.Resume(soon(t))), "the lease has not ended")

	v2 := b.successor(t)
	leases := make(chan *Lease, 10)
	s := serveAs(t, v2, "data", b.from.Buffer(), ReadOnly, OnLease(func(l *Lease) {
		if err := l.Notify(soon(t), []byte("I am the next")); err != nil {
			t.Error(err)
		}
		leases <- l
	}), WithData([]byte("v2")))
	require.Equal(t, "I am the next", string(<-notices))
	offer := b.att.Offer()
	require.EqualValues(t, os.Getpid(), offer.Producer.PID)
	require.Equal(t, "v2", string(offer.Data))
	require.NoError(t, b.att.Notify(soon(t), []byte("hello")))
	require.Equal(t, "hello", string(<-(<-leases).Notices()))
	require.NoError(t, b.att.Context().Err())
	require.False(t, serve.IsClosed(b.att.Done()))
	require.Equal(t, at, b.att.Ptr())
	<-fenced // of the first
	require.False(t, serve.IsClosed(b.att.Fenced()), "this process lives")
	b.nobodyFollows(t)
	require.Equal(t, 1, connected)

	replace(t, v2, filled(t, ctx, 7))
	require.ErrorIs(t, awaitCause(t, b.att.Context()), ErrSuperseded)
	<-superseded
	awaitSeen(t, b.found, 7)
	require.NoError(t, s.end(t))
	require.ErrorIs(t, b.cancel(), context.Canceled)
}

// Where a successor has other memory the body's attachment ends, for the reason for which
// its lease did.
func TestFollowTakesOtherMemoryOfASuccessor(t *testing.T) {
	dev, ctx := leavesNothing(t)
	b := follows(t, dev, ctx)
	b.loses(t)
	require.NoError(t, b.att.Context().Err())
	serveAs(t, b.successor(t), "data", filled(t, ctx, 5), ReadOnly)
	var lost *LostError
	require.ErrorAs(t, awaitCause(t, b.att.Context()), &lost)
	awaitSeen(t, b.found, 5)
	require.ErrorAs(t, b.att.Err(), &lost)
	require.ErrorIs(t, b.cancel(), context.Canceled)
}

// An attachment is without a lease no longer than was said, and not at all if that is 0.
func TestFollowIsBoundedWithoutALease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	for _, d := range []time.Duration{0, brief} {
		b := follows(t, dev, ctx, WithoutLease(d))
		begun := time.Now()
		b.loses(t)
		require.ErrorIs(t, awaitCause(t, b.att.Context()), sock.ErrPeerLost)
		require.GreaterOrEqual(t, time.Since(begun), d)
		require.ErrorIs(t, b.cancel(), context.Canceled)
	}
}

// A body that closes its attachment while there is no lease is not given the same memory
// again, and a loop that ends meanwhile does not wait.
func TestFollowIsClosedWithoutALease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	b := follows(t, dev, ctx)
	b.loses(t)
	require.NoError(t, b.att.Close())
	require.ErrorIs(t, b.att.Err(), ErrClosed)
	v2 := b.successor(t)
	serveAs(t, v2, "data", b.from.Buffer(), ReadOnly)
	awaitBehind(t, v2, 1)
	b.nobodyFollows(t)
	require.ErrorIs(t, b.cancel(), context.Canceled)

	b = follows(t, dev, ctx)
	b.loses(t)
	require.ErrorIs(t, b.cancel(), context.Canceled)
	require.ErrorIs(t, b.att.Err(), ErrClosed)
}

// A verdict that nobody hears, because there is no lease, ends the attachment all the same: it
// takes no other lease, whose holder would leave without a farewell.
func TestFollowIsJudgedWithoutALease(t *testing.T) {
	dev, ctx := leavesNothing(t)
	b := follows(t, dev, ctx)
	b.loses(t)
	begun := time.Now()
	b.att.swap.Lock() // which the verdict has to wait for
	reported := make(chan error, 1)
	go func() { reported <- b.att.Report(soon(t), nil) }()
	require.Never(t, func() bool { return b.att.Context().Err() != nil }, 20*time.Millisecond, time.Millisecond, "it ends behind the verdict")
	b.att.swap.Unlock()
	require.ErrorIs(t, <-reported, sock.ErrPeerLost)
	require.ErrorIs(t, awaitCause(t, b.att.Context()), sock.ErrPeerLost)
	require.Less(t, time.Since(begun), DefaultTimeout/2)
	v2 := b.successor(t)
	s := serveAs(t, v2, "data", b.from.Buffer(), ReadOnly)
	awaitBehind(t, v2, 1)
	b.nobodyFollows(t)
	require.ErrorIs(t, b.cancel(), context.Canceled)
	s.stop(t)
}

// A consumer that closes its attachment at the instant at which that gets another lease leaves in
// order. The successor has a lease that has ended, or none.
func TestFollowIsClosedWhileItResumes(t *testing.T) {
	dev, ctx := leavesNothing(t)
	for range 5 {
		b := follows(t, dev, ctx)
		b.loses(t)
		s := serveAs(t, b.successor(t), "data", b.from.Buffer(), ReadOnly)
		s.await(t, Mapped, 1)
		require.NoError(t, b.att.Close())
		require.NoError(t, s.await(t, Ended, 1).Err)
		require.ErrorIs(t, b.att.Err(), ErrClosed)
		require.ErrorIs(t, b.cancel(), context.Canceled)
		s.stop(t)
		require.NoError(t, b.from.Close())
	}
}

// A producer that takes a lease back and goes on is not asked for it again behind the
// body's back: the body is told, and called again.
func TestFollowHearsOfARevocation(t *testing.T) {
	_, ctx, srv := listening(t)
	srv.Expect("data")
	buf := filled(t, ctx, 1)
	s := put(t, srv, buf)
	found, cancel := followed(t, ctx, srv.Path())
	first := awaitSeen(t, found, 1)
	s.await(t, Mapped, 1)
	srv.Leases("data")[0].Revoke()
	require.ErrorIs(t, awaitCause(t, first.Context()), ErrRevoked)
	again := awaitSeen(t, found, 1)
	require.NotSame(t, first, again)
	require.ErrorIs(t, cancel(), context.Canceled)
}
