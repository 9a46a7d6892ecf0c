package share

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

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

// A successor has the path and the memory, and its predecessor the leases that it had, until
// it is closed. What consumers have mapped stays.
//
//fault:rows 85
func TestSuccessorTakesOver(t *testing.T) {
	dev, ctx := leavesNothing(t)
	v1 := listen(t)
	buf := newBuffer(t, ctx, 1<<20)
	s1 := put(t, v1, buf)
	old := attached(t, v1, "data", dev)
	from := attached(t, v1, "data", dev, WithReoffer())

	a, b := twoEnds(t)
	given := make(chan error, 1)
	go func() { given <- v1.HandOver(soon(t), a) }()
	v2 := ok(TakeOver(soon(t), b, v1.Path(), WithMode(0o666)))(t)
	t.Cleanup(func() { require.NoError(t, v2.Close()) })
	require.NoError(t, <-given)
	require.Equal(t, v1.Path(), v2.Path())
	early := make(chan *Attachment, 1)
	go func() { // before there is an offer
		att, err := Attach(soon(t), v1.Path(), "data", dev)
		if err != nil {
			t.Error(err)
		}
		early <- att
	}()
	s2 := serveAs(t, v2, "data", from.Buffer(), ReadOnly)
	late := attached(t, v2, "data", dev)
	require.Equal(t, old.Offer().Descriptor, late.Offer().Descriptor)
	require.NoError(t, (<-early).Close())
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
	dev, ctx := leavesNothing(t)
	v1 := listen(t)
	heard, wait := make(chan struct{}), make(chan struct{})
	put(t, v1, newBuffer(t, ctx, 1), OnLease(func(*Lease) {
		close(heard)
		<-wait
	}))
	goOn := sync.OnceFunc(func() { close(wait) })
	defer goOn()
	made := make(chan error, 1)
	go func() {
		att, err := Attach(soon(t), v1.Path(), "data", dev)
		made <- errors.Join(err, att.Close())
	}()
	<-heard
	a, b := twoEnds(t)
	var v2 *Server
	var err error
	took := make(chan struct{})
	go func() {
		defer close(took)
		v2, err = TakeOver(soon(t), b, v1.Path())
	}()
	while, cancel := context.WithTimeout(context.Background(), time.Second/5)
	defer cancel()
	require.NoError(t, v1.HandOver(while, a))
	require.Error(t, while.Err(), "HandOver returned before OnLease did")
	<-took
	require.NoError(t, errors.Join(err, v2.Close()))
	goOn()
	require.NoError(t, <-made)
}

// A consumer that has connected and not said what it wants is still waited for, and served.
func TestHandOverWaitsForWhoHasConnected(t *testing.T) {
	dev, ctx := leavesNothing(t)
	v1 := listen(t)
	put(t, v1, newBuffer(t, ctx, 1))
	handOver := func(given chan error, ctx context.Context) *Server {
		a, b := twoEnds(t)
		go func() { given <- v1.HandOver(ctx, a) }()
		v2 := ok(TakeOver(soon(t), b, v1.Path()))(t)
		t.Cleanup(func() { require.NoError(t, v2.Close()) })
		return v2
	}
	given := make(chan error, 2)
	var v2 *Server
	att := attached(t, v1, "data", dev, OnConnected(func(sock.Peer) {
		v2 = handOver(given, soon(t))
		require.Empty(t, given)
	}))
	require.NoError(t, <-given)
	require.Len(t, v1.Leases("data"), 1)
	require.NoError(t, att.Close())

	v1 = v2 // one that says nothing is waited for no longer than the context wants
	v1.Expect("data")
	silent := ok(sock.Dial(soon(t), v1.Path()))(t)
	limit, cancel := context.WithCancel(soon(t))
	handOver(given, limit)
	require.Empty(t, given)
	cancel()
	require.NoError(t, <-given)
	require.NoError(t, v1.Close())
	require.NoError(t, silent.Close())
}

// A handover that fails costs nothing. The server goes on, and another attempt may be made.
//
//fault:rows 85
func TestServerThatIsNotTakenOverGoesOn(t *testing.T) {
	dev, ctx := leavesNothing(t)
	v1 := listen(t)
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
}

// A server that never offered anything can be handed over, and closed at any time.
func TestHandOverWithoutAnOffer(t *testing.T) {
	_, _ = leavesNothing(t)
	v1 := listen(t)
	a, b := twoEnds(t)
	given := make(chan error, 1)
	go func() { given <- v1.HandOver(soon(t), a) }()
	v2 := ok(TakeOver(soon(t), b, v1.Path()))(t)
	require.NoError(t, <-given)

	a, b = twoEnds(t)
	go func() { given <- v2.HandOver(soon(t), a) }()
	rec := ok(b.Receive(soon(t)))(t)
	require.NoError(t, rec.Close())
	require.NoError(t, v2.Close())
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

	a, b := twoEnds(t)
	given := make(chan error, 1)
	go func() { given <- v1.HandOver(soon(t), a) }()
	v2 := ok(TakeOver(soon(t), b, v1.Path()))(t)
	t.Cleanup(func() { require.NoError(t, v2.Close()) })
	require.NoError(t, <-given)
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
