package share

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// leases is an OnLease whose leases come out at the channel.
func leases() (func(*Lease), <-chan *Lease) {
	c := make(chan *Lease, 16)
	return func(l *Lease) { c <- l }, c
}

// next is the lease that begins next.
func next(t testing.TB, c <-chan *Lease) *Lease {
	t.Helper()
	select {
	case l := <-c:
		return l
	case <-soon(t).Done():
		require.FailNow(t, "no lease begins")
		return nil
	}
}

// requireLive checks that the lease is there and has not ended.
func requireLive(t testing.TB, srv *Server, l *Lease) {
	t.Helper()
	require.True(t, slices.Contains(leasesAs(srv, "data"), l))
	require.NoError(t, l.Err())
	require.False(t, serve.IsClosed(l.Done()))
}

// awaitEnd waits for a lease's end and returns why.
func awaitEnd(t testing.TB, srv *Server, l *Lease) error {
	t.Helper()
	select {
	case <-l.Done():
		require.False(t, slices.Contains(leasesAs(srv, "data"), l))
		return l.Err()
	case <-soon(t).Done():
		require.FailNow(t, "the lease does not end")
		return nil
	}
}

// However a lease ends, Done and Err say so, once, as its last event does; and to
// take it back then changes nothing.
func TestLeaseIsDone(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	bad := errors.New("x")
	for name, c := range map[string]struct {
		end   func(*served, *Lease, *Attachment) error // nil is that it takes too long
		want  error                                    // of the lease
		there error                                    // of the attachment
		offer error
	}{
		"closed":        {func(_ *served, _ *Lease, a *Attachment) error { return a.Close() }, ErrNoVerdict, ErrClosed, nil},
		"good":          {func(_ *served, _ *Lease, a *Attachment) error { return a.Report(soon(t), nil) }, nil, nil, nil},
		"not good":      {func(_ *served, _ *Lease, a *Attachment) error { return a.Report(soon(t), bad) }, ErrVerdict, nil, nil},
		"too long":      {nil, ErrTimeout, ErrRefused, nil},
		"revoked":       {func(_ *served, l *Lease, _ *Attachment) error { l.Revoke(""); return nil }, ErrRevoked, ErrRevoked, nil},
		"offer ended":   {func(s *served, _ *Lease, _ *Attachment) error { s.cancel(); return nil }, ErrWithdrawn, ErrWithdrawn, nil},
		"server closed": {func(s *served, _ *Lease, _ *Attachment) error { return s.Close() }, ErrClosed, ErrWithdrawn, ErrClosed},
		"bad record": {func(_ *served, _ *Lease, a *Attachment) error {
			return a.now.Load().transport.Send(soon(t), isMapped(buf))
		}, serve.ErrUnexpected, ErrRefused, nil},
	} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t)
			onLease, begun := leases()
			opts := OfferOptions{OnLease: onLease, Verdict: true}
			if c.end == nil {
				opts.terms = timeoutFrom(Mapped, 1, brief)
			}
			s := put(t, srv, buf, opts)
			att := attached(t, srv, "data", dev)
			l := next(t, begun)
			require.Equal(t, 1, l.Number())
			require.Equal(t, cu.ReadOnly, l.Access())
			require.Equal(t, pid(), l.Peer().PID)
			s.await(t, Mapped, 1)
			if c.end != nil {
				requireLive(t, srv, l)
				require.NoError(t, c.end(s, l, att))
			}
			require.ErrorIs(t, awaitEnd(t, srv, l), c.want)
			require.ErrorIs(t, awaitDone(t, att), c.there)
			require.ErrorIs(t, att.Progress(soon(t), 1, 2), cmp.Or(c.there, ErrClosed))
			if name != "closed" { // what is mapped stays (D11)
				requireNoise(t, ctx, att.Buffer(), 1)
			}
			why := l.Err()
			require.Equal(t, why, s.await(t, Ended, 1).Err)
			l.Revoke("")
			require.Equal(t, why, l.Err())
			if errors.Is(why, ErrRevoked) {
				require.ErrorIs(t, l.Notify(soon(t), nil), ErrRevoked)
			}
			s.cancel()
			require.ErrorIs(t, s.end(t), c.offer)
			require.Empty(t, leasesAs(srv, "data"))
		})
	}
}

// FAULTS 5, 6: a consumer that is killed, wherever it is.
func TestFault5and6_LeaseOfAKilledConsumer(t *testing.T) {
	_, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1<<20)
	exportOnce(t, buf)
	for name, c := range map[string]struct {
		do, line string // of the child
		pending  bool   // it waits for its data
		want     error
	}{
		"when it has received":      {"stop when received", "received", false, ErrNoVerdict},
		"when it has mapped":        {"stop when mapped", "mapped", false, ErrNoVerdict},
		"before the data, received": {"stop when received", "received", true, sock.ErrPeerLost},
		"before the data, waiting":  {"", "", true, sock.ErrPeerLost},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, srv := listening(t)
			onLease, begun := leases()
			p, s := prepared(t, srv, "data", buf, cu.ReadWrite, OfferOptions{OnLease: onLease, Verdict: true})
			if !c.pending {
				s.start(t, "data", p.offer)
			}
			child := start(t, "consumer", srv.Path(), c.do)
			l := next(t, begun)
			s.await(t, Sent, 1)
			if c.line != "" {
				child.says(t, c.line)
			}
			requireLive(t, srv, l)
			child.kill()
			err := awaitEnd(t, srv, l)
			require.ErrorIs(t, err, c.want)
			require.ErrorIs(t, err, sock.ErrPeerLost)
			require.NoError(t, p.Close())
		})
	}
}

// A consumer whose lease is revoked is told; it costs the others nothing, and the offer goes on.
func TestRevoke(t *testing.T) {
	dev, ctx, srv := listening(t)
	expect(srv, "data")
	require.Empty(t, leasesAs(srv, "data"))
	onLease, begun := leases()
	s := put(t, srv, newBuffer(t, ctx, 1), OfferOptions{OnLease: onLease})
	conn := asked(t, srv, wants(dev))
	mine := next(t, begun)
	other := attached(t, srv, "data", dev)
	theirs := next(t, begun)
	require.True(t, slices.Equal([]*Lease{mine, theirs}, leasesAs(srv, "data")))
	require.IsType(t, wire.Offer{}, heard(t, conn))
	s.await(t, Mapped, 1)

	mine.Revoke("another one needs it")
	require.Equal(t, wire.Revoke{Text: "another one needs it", Reason: wire.EndRevoked}, heard(t, conn))
	require.NoError(t, conn.Close())
	require.ErrorIs(t, awaitEnd(t, srv, mine), ErrRevoked)
	require.NotErrorIs(t, mine.Err(), context.Canceled)
	require.True(t, slices.Equal([]*Lease{theirs}, leasesAs(srv, "data")))
	requireLive(t, srv, theirs)
	require.NoError(t, other.Err())
	require.NoError(t, other.Progress(soon(t), 1, 2))
	requireServed(t, srv, ctx)
	require.Empty(t, s.result, "the offer goes on")
}

// A consumer whose lease is revoked as soon as it begins is sent nothing of the offer.
func TestRevokeBeforeAnythingIsSent(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for name, isEarly := range map[string]bool{"early": true, "late, before the data": false} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t)
			expect(srv, "data")
			var conn *sock.Conn
			if isEarly {
				conn = early(t, srv, wants(dev))
			}
			p, s := prepared(t, srv, "data", buf, cu.ReadOnly, OfferOptions{OnLease: func(l *Lease) {
				if l.Number() == 1 {
					l.Revoke("")
				}
			}})
			if !isEarly {
				conn = asked(t, srv, wants(dev))
			}
			require.IsType(t, wire.Revoke{}, heard(t, conn))
			require.NoError(t, conn.Close())
			require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrRevoked)
			require.Empty(t, s.of(Sent))
			s.start(t, "data", p.offer)
			requireServed(t, srv, ctx)
		})
	}
}

// A lease that is revoked while its data is published ends like any other: the
// consumer may or may not hear of the data before.
func TestRevokeWhileTheDataIsPublished(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for range 50 {
		srv := listen(t)
		onLease, begun := leases()
		p, s := prepared(t, srv, "data", buf, cu.ReadOnly, OfferOptions{OnLease: onLease, Synchronized: true})
		conn := asked(t, srv, wants(dev))
		require.IsType(t, wire.Offer{}, heard(t, conn))
		l := next(t, begun)
		go l.Revoke("")
		s.start(t, "data", p.offer)
		m := heard(t, conn)
		if _, ok := m.(wire.Publish); ok {
			m = heard(t, conn)
		}
		require.IsType(t, wire.Revoke{}, m)
		require.NoError(t, conn.Close())
		require.ErrorIs(t, awaitEnd(t, srv, l), ErrRevoked)
		requireServed(t, srv, ctx)
		require.NoError(t, srv.Close())
	}
}

// Invariant 6: a verdict is an error on both sides if it is not good.
func TestVerdictReachesTheProducer(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1), OfferOptions{Verdict: true, MaxConsumers: 2})
	for i, text := range []string{"index 7 is wrong", "bad bytes \xff\xfe"} {
		att := attached(t, srv, "", dev)
		require.NoError(t, att.Report(soon(t), errors.New(text)))
		require.NoError(t, att.AwaitFence(soon(t), fence.Released), "both part in order")
		require.NoError(t, att.Close())
		require.ErrorIs(t, s.await(t, Ended, i+1).Err, ErrVerdict)
		var v *serve.VerdictError
		require.ErrorAs(t, s.await(t, Verdict, i+1).Err, &v)
		require.Equal(t, []string{"index 7 is wrong", "bad bytes \uFFFD"}[i], v.Text)
	}
	require.NoError(t, s.end(t))
}

// FAULTS 31: the acknowledgement that never comes. A consumer that owes no verdict may be silent
// for as long as it likes.
func TestConsumerThatOwesAVerdict(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	owing := put(t, srv, buf, OfferOptions{Verdict: true, terms: timeoutFrom(Mapped, 2, brief)})
	free := serveAs(t, srv, "free", buf, cu.ReadOnly, OfferOptions{terms: timeoutFrom(Mapped, 1, brief)})
	gone := attached(t, srv, "data", dev)
	require.NoError(t, gone.Close())
	err := owing.await(t, Ended, 1).Err
	require.ErrorIs(t, err, ErrNoVerdict)
	require.ErrorIs(t, err, sock.ErrPeerLost)

	quiet := attached(t, srv, "free", dev)
	free.await(t, Mapped, 1)
	silent := attached(t, srv, "data", dev)
	require.ErrorIs(t, owing.await(t, Ended, 2).Err, ErrTimeout)
	var no *serve.RefusalError
	require.ErrorAs(t, awaitDone(t, silent), &no)
	require.Equal(t, wire.RefusedTimeout, no.Code)
	require.ErrorIs(t, silent.Report(soon(t), nil), ErrRefused, "nobody has read it")
	require.NoError(t, quiet.Err())
	require.NoError(t, quiet.Report(soon(t), nil), "one may be given all the same")
	free.await(t, Verdict, 1)
}

// Progress renews the deadline, on either side.
func TestProgressRenewsTheDeadline(t *testing.T) {
	const patience, step, steps = 4 * time.Second, 250 * time.Millisecond, 18 // longer in all
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	s := put(t, listen(t, ListenOptions{Timeout: patience}), newBuffer(t, ctx, 1), OfferOptions{Verdict: true})
	slowly := func(show func(done uint64) error) error {
		for i := range uint64(steps) {
			time.Sleep(step)
			if err := show(i); err != nil {
				return err
			}
		}
		return nil
	}
	path := impostor(t, func(conn *sock.Conn) {
		_ = slowly(func(n uint64) error { return conn.Send(soon(t), wire.Encode(wire.Progress{Done: n, Total: steps})) })
		l := tr.say(nil, tr.files...)
		_ = conn.Send(soon(t), l.record, l.files...)
		_ = conn.WaitClose(soon(t))
	})
	slow := make(chan error, 1)
	go func() { slow <- attachOnce(path, dev, AttachOptions{Timeout: patience})(soon(t)) }()
	att := attached(t, s.Server, "", dev)
	require.NoError(t, slowly(func(n uint64) error { return att.Progress(soon(t), n, steps) }))
	require.NoError(t, att.Report(soon(t), nil))
	require.NoError(t, <-slow)
	require.NoError(t, s.await(t, Ended, 1).Err)
	require.Len(t, s.of(Progress), steps)
}

// A lease that ends before the data is there gives its place to another. Any other uses its place
// up, revoked or not, and the offer ends with the last.
func TestOfferEndsWithItsLeases(t *testing.T) {
	dev, ctx, srv := listening(t)
	onLease, begun := leases()
	p, s := prepared(t, srv, "data", newBuffer(t, ctx, 1), cu.ReadOnly, OfferOptions{OnLease: onLease, MaxConsumers: 2})
	conn := asked(t, srv, wants(dev))
	require.True(t, heard(t, conn).(wire.Offer).Pending)
	next(t, begun).Revoke("")
	require.IsType(t, wire.Revoke{}, heard(t, conn))
	require.NoError(t, conn.Close())
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrRevoked)

	s.start(t, "data", p.offer)
	first, second := attached(t, srv, "", dev), attached(t, srv, "", dev)
	var no *serve.RefusalError
	require.ErrorAs(t, errOf(Attach(soon(t), srv.Path(), "", dev, nil)), &no)
	require.Equal(t, wire.RefusedBusy, no.Code)
	next(t, begun).Revoke("")
	require.ErrorIs(t, awaitDone(t, first), ErrRevoked)
	s.await(t, Ended, 2)
	require.Empty(t, s.result, "one is still attached")
	require.NoError(t, second.Err())
	require.NoError(t, second.Close())
	require.NoError(t, s.end(t))
}

func TestIdleTimeoutCountsFromTheLastConsumer(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	nobody := serveAs(t, srv, "nobody comes", buf, cu.ReadOnly, OfferOptions{IdleTimeout: 20 * time.Millisecond})
	require.ErrorIs(t, nobody.end(t), ErrNoConsumer)
	expect(srv, "data")
	conn := early(t, srv, wants(dev)) // the offer begins with it
	s := put(t, srv, buf, OfferOptions{IdleTimeout: brief})
	require.IsType(t, wire.Offer{}, heard(t, conn))
	require.NoError(t, conn.Send(soon(t), wire.Encode(isMapped(buf))))
	outlast(t) // longer than the offer waits for somebody to come
	require.Empty(t, s.result)
	require.Empty(t, s.of(Ended))
	require.NoError(t, conn.Close())
	require.ErrorIs(t, s.end(t), ErrNoConsumer)
}

// Close ends everything at once, also a connection that has said nothing.
func TestServerCloseEndsItsOffers(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	a, b := serveAs(t, srv, "a", buf, cu.ReadOnly), serveAs(t, srv, "b", buf, cu.ReadOnly)
	silent := dialed(t, srv)
	closed := make(chan error, 1)
	go func() { closed <- srv.Close() }()
	_, _ = silent.Receive(soon(t)) // it is told, or lost: either way it does not wait for ever
	require.NoError(t, silent.Close())
	require.NoError(t, <-closed)
	require.ErrorIs(t, a.end(t), ErrClosed)
	require.ErrorIs(t, b.end(t), ErrClosed)
	require.NoError(t, srv.Close())
	require.NoError(t, (*Server)(nil).Close())
	require.ErrorIs(t, offerFor(soon(t), srv, "c", buf, cu.ReadOnly), ErrClosed)
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "a", dev, nil)), sock.ErrNoListener)
}

func awaitNotice(t testing.TB, notices <-chan []byte) string {
	t.Helper()
	select {
	case b := <-notices:
		return string(b)
	case <-soon(t).Done():
		require.FailNow(t, "no notice comes")
		return ""
	}
}

// Each side tells the other, in order, whatever else they say. A consumer that does not take
// notices keeps the latest, and its lease.
func TestNotices(t *testing.T) {
	dev, ctx, srv := listening(t)
	begun := make(chan *Lease, 1)
	put(t, srv, newBuffer(t, ctx, 1), OfferOptions{OnLease: func(l *Lease) {
		if err := l.Notify(context.Background(), []byte("early")); err != nil {
			t.Error(err)
		}
		begun <- l
	}})
	att := attached(t, srv, "data", dev, AttachOptions{peer: withRate(0)})
	l := <-begun
	require.Equal(t, "early", awaitNotice(t, att.Notices()), "before the memory")
	full := bytes.Repeat([]byte{0xff}, MaxNotice)
	for _, b := range [][]byte{[]byte("a"), {}, full} {
		require.NoError(t, l.Notify(soon(t), b))
		require.NoError(t, att.Progress(soon(t), 1, 2))
		require.NoError(t, att.Notify(soon(t), b))
		require.Equal(t, string(b), awaitNotice(t, att.Notices()))
		require.Equal(t, string(b), awaitNotice(t, l.Notices()))
	}
	for name, err := range map[string]error{"lease": l.Notify(soon(t), append(full, 0)), "attachment": att.Notify(soon(t), append(full, 0))} {
		require.ErrorContains(t, err, "4097 bytes", name)
	}

	const sent = 3 * 16
	for i := range sent {
		require.NoError(t, l.Notify(soon(t), fmt.Append(nil, i)))
	}
	for deadline := time.Now().Add(10 * time.Second); awaitNotice(t, att.Notices()) != fmt.Sprint(sent-1); {
		require.Less(t, time.Now(), deadline)
	}
	require.NoError(t, att.Err())
	require.NoError(t, att.Notify(soon(t), []byte("last")))
	require.NoError(t, att.Close())
	<-l.Done()
	require.Equal(t, "last", awaitNotice(t, l.Notices()), "after the end")
	require.ErrorIs(t, att.Notify(soon(t), nil), ErrClosed)
}

// A zero or nil Lease or Attachment has no notices, and sends none.
func TestNoticesOfNothing(t *testing.T) {
	for _, l := range []*Lease{nil, {}} {
		require.ErrorIs(t, l.Notify(t.Context(), nil), ErrClosed)
		require.Nil(t, l.Notices())
	}
	for _, a := range []*Attachment{nil, {}} {
		require.ErrorIs(t, a.Notify(t.Context(), nil), ErrClosed)
		require.Nil(t, a.Notices())
		require.ErrorIs(t, context.Cause(a.Context()), ErrClosed)
	}
}
