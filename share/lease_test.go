package share

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/sock"
)

// Invariant 6: a verdict is an error on both sides if it is not good.
func TestVerdictReachesTheProducer(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1), WithVerdict(), WithLeases(3))
	for i, fault := range []error{nil, errors.New("index 7 is wrong"), errors.New("bad bytes \xff\xfe")} {
		att := attached(t, srv, "", dev)
		require.NoError(t, att.Report(soon(t), fault))
		require.NoError(t, att.Close())
		told, ended := s.await(t, Verdict, i+1).Err, s.await(t, Ended, i+1).Err
		if fault == nil {
			require.NoError(t, told)
			require.NoError(t, ended)
			continue
		}
		require.ErrorIs(t, told, ErrVerdict)
		require.ErrorIs(t, ended, ErrVerdict)
		var v *VerdictError
		require.ErrorAs(t, told, &v)
		require.Equal(t, []string{"", "index 7 is wrong", "bad bytes \uFFFD"}[i], v.Text)
	}
	require.NoError(t, s.end(t))
}

// FAULTS 31: the acknowledgement that never comes.
func TestConsumerThatOwesAVerdict(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1), WithVerdict(), timeoutFrom(Mapped, 2, brief))
	gone := attached(t, srv, "", dev)
	require.NoError(t, gone.Close())
	err := s.await(t, Ended, 1).Err
	require.ErrorIs(t, err, ErrNoVerdict)
	require.ErrorIs(t, err, sock.ErrPeerLost)

	silent := attached(t, srv, "", dev)
	require.ErrorIs(t, s.await(t, Ended, 2).Err, ErrTimeout)
	var no *RefusalError
	require.ErrorAs(t, awaitDone(t, silent), &no)
	require.Equal(t, RefusedTimeout, no.Code)
	require.ErrorIs(t, silent.Report(soon(t), nil), ErrRefused, "nobody has read it")
	requireNoise(t, ctx, silent.Buffer(), 1)
}

// A consumer that owes no verdict may be silent for as long as it likes.
func TestConsumerThatOwesNothingMayBeSilent(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1), timeoutFrom(Mapped, 1, brief))
	att := attached(t, srv, "", dev)
	s.await(t, Mapped, 1)
	outlast(t)
	require.NoError(t, att.Err())
	require.NoError(t, att.Report(soon(t), nil), "one may be given all the same")
	s.await(t, Verdict, 1)
}

// Progress renews the deadline, on either side.
func TestProgressRenewsTheDeadline(t *testing.T) {
	const patience, step, steps = 4 * time.Second, 250 * time.Millisecond, 18 // longer in all
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	var both sync.WaitGroup
	srv := listen(t, WithTimeout(patience))
	s := put(t, srv, newBuffer(t, ctx, 1), WithVerdict())
	both.Go(func() { // the consumer's
		att, err := Attach(soon(t), srv.Path(), "", dev)
		if !assert.NoError(t, err) {
			return
		}
		defer att.Close()
		tick := time.NewTicker(step)
		defer tick.Stop()
		for i := range uint64(steps) {
			<-tick.C
			assert.NoError(t, att.Progress(soon(t), i, steps))
		}
		assert.NoError(t, att.Report(soon(t), nil))
	})
	path := impostor(t, func(conn *sock.Conn) { // the producer's
		tick := time.NewTicker(step)
		defer tick.Stop()
		for i := range uint64(steps) {
			<-tick.C
			_ = conn.Send(soon(t), wire.Encode(wire.Progress{Done: i, Total: steps}))
		}
		l := tr.say(nil, tr.files...)
		_ = conn.Send(soon(t), l.record, l.files...)
		_ = conn.WaitClose(soon(t))
	})
	att := ok(Attach(soon(t), path, "", dev, WithTimeout(patience)))(t)
	require.NoError(t, att.Close())
	both.Wait()
	require.NoError(t, s.await(t, Ended, 1).Err)
	require.Len(t, s.of(Progress), steps)
}

// The end of an offer is a message; what is mapped stays (D11).
func TestEndedOfferIsRevoked(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 9))
	a, b := attached(t, srv, "", dev), attached(t, srv, "", dev)
	s.await(t, Mapped, 2)
	s.stop(t)
	for i, att := range []*Attachment{a, b} {
		require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
		require.ErrorIs(t, s.await(t, Ended, i+1).Err, ErrRevoked)
		require.ErrorIs(t, att.Progress(soon(t), 1, 2), ErrRevoked)
		require.ErrorIs(t, att.Report(soon(t), nil), ErrRevoked)
		requireNoise(t, ctx, att.Buffer(), 1)
	}
}

func TestOfferEndsWithItsLeases(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1), WithLeases(2))
	first := attached(t, srv, "", dev)
	second := attached(t, srv, "", dev)
	_, err := Attach(soon(t), srv.Path(), "", dev)
	var no *RefusalError
	require.ErrorAs(t, err, &no)
	require.Equal(t, RefusedBusy, no.Code)
	require.NoError(t, first.Close())
	s.await(t, Ended, 1)
	require.Empty(t, s.result, "one is still attached")
	require.NoError(t, second.Err())
	require.NoError(t, second.Close())
	require.NoError(t, s.end(t))
}

func TestOfferThatNobodyTakes(t *testing.T) {
	_, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1), WithIdleTimeout(20*time.Millisecond))
	require.ErrorIs(t, s.end(t), ErrNoConsumer)
}

func TestIdleTimeoutCountsFromTheLastConsumer(t *testing.T) {
	dev, ctx, srv := listening(t)
	srv.Expect("data")
	conn := early(t, srv, wants(dev)) // the offer begins with it
	buf := newBuffer(t, ctx, 1)
	s := put(t, srv, buf, WithIdleTimeout(brief))
	require.IsType(t, wire.Offer{}, heard(t, conn))
	require.NoError(t, conn.Send(soon(t), wire.Encode(isMapped(buf))))
	outlast(t) // longer than the offer waits for somebody to come
	require.Empty(t, s.result)
	require.Empty(t, s.of(Ended))
	require.NoError(t, conn.Close())
	require.ErrorIs(t, s.end(t), ErrNoConsumer)
}

// Close ends everything at once, whoever is in the middle of what.
func TestServerCloseEndsItsOffers(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	a, b := serveAs(t, srv, "a", buf, ReadOnly), serveAs(t, srv, "b", buf, ReadOnly)
	att := attached(t, srv, "a", dev)
	waiting := dialed(t, srv)
	a.await(t, Mapped, 1)
	closed := make(chan error, 1)
	go func() { closed <- srv.Close() }()
	_, _ = waiting.Receive(soon(t)) // it is told, or lost: either way it does not wait for ever
	require.NoError(t, waiting.Close())
	require.NoError(t, <-closed)
	require.ErrorIs(t, a.end(t), ErrClosed)
	require.ErrorIs(t, b.end(t), ErrClosed)
	require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
	require.NoError(t, srv.Close())
	require.NoError(t, (*Server)(nil).Close())
	require.ErrorIs(t, srv.Offer(soon(t), "c", buf, ReadOnly), ErrClosed)
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "a", dev)), sock.ErrNoListener)
}

// Offering and closing race: nothing is left, and nothing hangs.
func TestServerClosedWhileOffersBegin(t *testing.T) {
	_, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for range 30 {
		srv := ok(Listen(socketPath(t)))(t)
		var offers sync.WaitGroup
		for _, name := range []string{"a", "b"} {
			offers.Go(func() {
				assert.ErrorIs(t, srv.Offer(soon(t), name, buf, ReadOnly), ErrClosed)
			})
		}
		require.NoError(t, srv.Close())
		offers.Wait()
	}
}
