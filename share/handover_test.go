package share

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/sock"
)

// twoEnds is a predecessor's end of a connection and its successor's.
func twoEnds(t testing.TB) (a, b *sock.Conn) {
	t.Helper()
	a, b, err := sock.NewPair()
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
	return a, b
}

// handedOver returns the server that has taken over from v1.
func handedOver(t testing.TB, v1 *Server) *Server {
	t.Helper()
	a, b := twoEnds(t)
	given := make(chan error, 1)
	go func() { given <- v1.HandOver(soon(t), a) }()
	v2 := ok(TakeOver(soon(t), b, v1.Path(), WithMode(0o666)))(t)
	t.Cleanup(func() { require.NoError(t, v2.Close()) })
	require.NoError(t, <-given)
	return v2
}

// A successor has the path and the memory, and its predecessor the leases that it had, until
// it is closed. What consumers have mapped stays.
//
//fault:rows 85
func TestSuccessorTakesOver(t *testing.T) {
	dev, ctx := leavesNothing(t)
	v1 := listen(t)
	s1 := put(t, v1, newBuffer(t, ctx, 1<<20))
	old := attached(t, v1, "data", dev)
	from := attached(t, v1, "data", dev, WithReoffer())
	v2 := handedOver(t, v1)
	require.Equal(t, v1.Path(), v2.Path())
	early := make(chan error, 1)
	go func() { // before there is an offer
		att, err := Attach(soon(t), v1.Path(), "data", dev)
		early <- errors.Join(err, att.Close())
	}()
	s2 := serveAs(t, v2, "data", from.Buffer(), ReadOnly)
	late := attached(t, v2, "data", dev)
	require.Equal(t, old.Offer().Descriptor, late.Offer().Descriptor)
	require.NoError(t, <-early)
	require.Len(t, v1.Leases("data"), 2)

	require.NoError(t, old.Err())
	require.NoError(t, v1.Remove())
	require.NoError(t, v1.Close())
	require.ErrorIs(t, s1.end(t), ErrClosed)
	require.ErrorIs(t, awaitDone(t, old), ErrRevoked)
	require.ErrorIs(t, awaitDone(t, from), ErrRevoked)
	require.NoError(t, late.Err())
	requireNoise(t, ctx, attached(t, v2, "data", dev).Buffer(), 1)
	s2.stop(t)
}

// HandOver does not return before the application has heard of each lease (OnLease): it may end
// the server when there is none that goes on.
func TestHandOverWaitsForOnLease(t *testing.T) {
	dev, ctx, v1 := listening(t)
	heard, wait := make(chan struct{}), make(chan struct{})
	put(t, v1, newBuffer(t, ctx, 1), OnLease(func(*Lease) {
		close(heard)
		<-wait
	}))
	conn := asked(t, v1, wants(dev))
	<-heard
	a, b := twoEnds(t)
	given := make(chan error, 1)
	go func() { given <- v1.HandOver(soon(t), a) }()
	v2 := ok(TakeOver(soon(t), b, v1.Path()))(t)
	<-briefly(t).Done()
	require.Empty(t, given)
	close(wait)
	require.NoError(t, <-given)
	require.NoError(t, errors.Join(v2.Close(), conn.Close()))
}

// A consumer that has connected and not said what it wants is still waited for, and served, but
// no longer than the context wants.
func TestHandOverWaitsForWhoHasConnected(t *testing.T) {
	dev, ctx, v1 := listening(t)
	put(t, v1, newBuffer(t, ctx, 1))
	given := make(chan error, 1)
	handOver := func(ctx context.Context, v1 *Server) *Server {
		a, b := twoEnds(t)
		go func() { given <- v1.HandOver(ctx, a) }()
		v2 := ok(TakeOver(soon(t), b, v1.Path()))(t)
		t.Cleanup(func() { require.NoError(t, v2.Close()) })
		require.Empty(t, given)
		return v2
	}
	var v2 *Server
	attached(t, v1, "data", dev, OnConnected(func(sock.Peer) { v2 = handOver(soon(t), v1) }))
	require.NoError(t, <-given)
	require.Len(t, v1.Leases("data"), 1)

	v2.Expect("data")
	silent := dialed(t, v2)
	limit, cancel := context.WithCancel(soon(t))
	handOver(limit, v2)
	cancel()
	require.NoError(t, <-given)
	require.NoError(t, v2.Close())
	require.NoError(t, silent.Close())
}

// A handover that fails costs nothing. The server goes on, and another attempt may be made.
//
//fault:rows 85
func TestServerThatIsNotTakenOverGoesOn(t *testing.T) {
	dev, ctx, v1 := listening(t)
	put(t, v1, newBuffer(t, ctx, 1))
	a, b := twoEnds(t)
	waiting := make(chan error, 1)
	given := make(chan error, 1)
	go func() { given <- v1.HandOver(soon(t), a) }()
	rec, err := b.Receive(soon(t)) // nobody gets in any more
	require.NoError(t, err)
	require.NoError(t, rec.Close())
	go func() {
		att, err := Attach(soon(t), v1.Path(), "data", dev)
		waiting <- err
		_ = att.Close()
	}()
	require.NoError(t, b.Send(soon(t), []byte("no memory")))
	require.ErrorContains(t, <-given, "no memory")
	require.NoError(t, <-waiting)
	require.NoError(t, attached(t, v1, "data", dev).Close())

	a, b = twoEnds(t)
	require.ErrorContains(t, errOf(TakeOver(soon(t), b, v1.Path(), WithConnections(0))), "WithConnections")
	require.NoError(t, b.Close())
	require.ErrorIs(t, v1.HandOver(soon(t), a), sock.ErrPeerLost)
	require.NoError(t, v1.Close())
	require.ErrorIs(t, v1.HandOver(soon(t), a), ErrClosed)

	v2 := handedOver(t, listen(t)) // which never offered anything
	a, b = twoEnds(t)
	go func() { given <- v2.HandOver(soon(t), a) }()
	rec = ok(b.Receive(soon(t)))(t)
	require.NoError(t, rec.Close())
	require.NoError(t, v2.Close(), "at any time")
	require.ErrorIs(t, <-given, sock.ErrClosed)
}

// HandOver does not wait for a consumer that waits for newer memory than the predecessor offers.
// That consumer asks the successor when the offer has ended. A consumer that has the memory
// mapped resumes its lease there.
//
//fault:rows 85
func TestHandOverWithWaitersAndResumes(t *testing.T) {
	dev, ctx := leavesNothing(t)
	v1 := listen(t)
	buf := newBuffer(t, ctx, 1)
	put(t, v1, buf)
	old := attached(t, v1, "data", dev)
	from := attached(t, v1, "data", dev, WithReoffer())
	waits := waitForNewer(t, v1, dev, buf)
	awaitBehind(t, v1, 1)

	v2 := handedOver(t, v1)
	awaitBehind(t, v1, 1)
	s := serveAs(t, v2, "data", from.Buffer(), ReadOnly)
	require.NoError(t, v1.Close())
	require.Nil(t, <-waits.att)
	var no *RefusalError
	require.ErrorAs(t, <-waits.err, &no)
	require.True(t, mends(no), "Follow asks again: %v", no)

	require.ErrorIs(t, awaitDone(t, old), ErrRevoked)
	next := ok(old.Resume(soon(t)))(t)
	require.Len(t, v2.Leases("data"), 1)
	require.Equal(t, v2.Leases("data")[0].Peer(), next.Offer().Producer)
	requireNoise(t, ctx, next.Buffer(), 1)
	require.NoError(t, next.Close())
	s.stop(t)
}
