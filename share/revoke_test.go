package share

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
)

// leases is an OnLease whose leases come out at the channel.
func leases() (OfferOption, <-chan *Lease) {
	c := make(chan *Lease, 16)
	return OnLease(func(l *Lease) { c <- l }), c
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
	require.True(t, slices.Contains(srv.Leases("data"), l))
	require.NoError(t, l.Err())
	select {
	case <-l.Done():
		require.FailNow(t, "the lease has ended")
	default:
	}
}

// awaitEnd waits for a lease's end and returns why.
func awaitEnd(t testing.TB, srv *Server, l *Lease) error {
	t.Helper()
	select {
	case <-l.Done():
		require.False(t, slices.Contains(srv.Leases("data"), l))
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
	for name, c := range map[string]struct {
		timeout time.Duration // once it is mapped
		end     func(*testing.T, *served, *Lease, *Attachment)
		want    error // of the lease
		there   error // of the attachment
		offer   error
	}{
		"closed": {DefaultTimeout, func(t *testing.T, _ *served, _ *Lease, a *Attachment) { require.NoError(t, a.Close()) }, ErrNoVerdict, ErrClosed, nil},
		"good": {DefaultTimeout, func(t *testing.T, _ *served, _ *Lease, a *Attachment) {
			require.NoError(t, a.Report(soon(t), nil))
		}, nil, sock.ErrPeerLost, nil},
		"not good": {DefaultTimeout, func(t *testing.T, _ *served, _ *Lease, a *Attachment) {
			require.NoError(t, a.Report(soon(t), errors.New("x")))
		}, ErrVerdict, sock.ErrPeerLost, nil},
		"too long": {brief, func(*testing.T, *served, *Lease, *Attachment) {}, ErrTimeout, ErrRefused, nil},
		"bad record": {DefaultTimeout, func(t *testing.T, _ *served, _ *Lease, a *Attachment) {
			require.NoError(t, a.now.Load().transport.Send(soon(t), isMapped(buf)))
		}, ErrProtocol, ErrRefused, nil},
		"revoked":       {DefaultTimeout, func(_ *testing.T, _ *served, l *Lease, _ *Attachment) { l.Revoke() }, ErrRevoked, ErrRevoked, nil},
		"offer ended":   {DefaultTimeout, func(_ *testing.T, s *served, _ *Lease, _ *Attachment) { s.cancel() }, ErrRevoked, ErrRevoked, nil},
		"server closed": {DefaultTimeout, func(t *testing.T, s *served, _ *Lease, _ *Attachment) { require.NoError(t, s.Close()) }, ErrClosed, ErrRevoked, ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t)
			onLease, begun := leases()
			s := put(t, srv, buf, onLease, WithVerdict(), timeoutFrom(Mapped, 1, c.timeout))
			att := attached(t, srv, "data", dev)
			l := next(t, begun)
			if c.timeout == DefaultTimeout {
				requireLive(t, srv, l)
			}
			require.Equal(t, 1, l.Number())
			require.Equal(t, ReadOnly, l.Access())
			require.Equal(t, pid(), l.Peer().PID)
			s.await(t, Mapped, 1)
			c.end(t, s, l, att)
			require.ErrorIs(t, awaitEnd(t, srv, l), c.want)
			require.ErrorIs(t, awaitDone(t, att), c.there)
			require.Equal(t, l.Err(), s.await(t, Ended, 1).Err)
			why := l.Err()
			l.Revoke()
			require.Equal(t, why, l.Err())
			s.cancel()
			require.ErrorIs(t, s.end(t), c.offer)
			require.Empty(t, srv.Leases("data"))
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
			leavesNothing(t)
			srv := listen(t)
			onLease, begun := leases()
			p, s := prepared(t, srv, "data", buf, ReadWrite, onLease, WithVerdict())
			if !c.pending {
				s.start(t, "data", p.Offer)
			}
			child := start(t, "consumer", srv.Path(), c.do)
			l := next(t, begun)
			require.EqualValues(t, child.cmd.Process.Pid, l.Peer().PID)
			s.await(t, Sent, 1)
			if c.line != "" {
				child.says(t, c.line)
			}
			requireLive(t, srv, l)
			child.kill()
			require.ErrorIs(t, awaitEnd(t, srv, l), c.want)
			require.NoError(t, p.Close())
		})
	}
}

// A consumer whose lease is revoked is told, wherever it stands; it costs the others
// nothing, and the offer goes on.
func TestRevoke(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for name, came := range map[string]bool{"with the offer": false, "before it": true} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t)
			onLease, begun := leases()
			var conn *sock.Conn
			if came {
				srv.Expect("data")
				conn = early(t, srv, wants(dev))
			}
			s := put(t, srv, buf, onLease)
			if !came {
				conn = asked(t, srv, wants(dev))
			}
			mine := next(t, begun)
			other := attached(t, srv, "data", dev)
			theirs := next(t, begun)
			require.True(t, slices.Equal([]*Lease{mine, theirs}, srv.Leases("data")))
			require.IsType(t, wire.Offer{}, heard(t, conn))
			s.await(t, Mapped, 1)

			mine.Revoke()
			require.Equal(t, wire.Revoke{Text: "the producer has taken this lease back"}, heard(t, conn))
			require.NoError(t, conn.Close())
			require.ErrorIs(t, awaitEnd(t, srv, mine), ErrRevoked)
			require.NotErrorIs(t, mine.Err(), context.Canceled)
			require.True(t, slices.Equal([]*Lease{theirs}, srv.Leases("data")))
			requireLive(t, srv, theirs)
			require.NoError(t, other.Err())
			require.NoError(t, other.Progress(soon(t), 1, 2))
			requireServed(t, srv, ctx)
			require.Empty(t, s.result, "the offer goes on")
		})
	}
}

// A consumer that waits for data in the making is told of the revocation, too, and another consumer
// gets its place.
func TestRevokeBeforeTheDataIsThere(t *testing.T) {
	spy, dev, ctx := spied(t)
	srv := listen(t)
	onLease, begun := leases()
	p, s := prepared(t, srv, "data", newBuffer(t, ctx, 5), ReadOnly, onLease, WithLeases(1))
	results := make(chan error, 2)
	attach := func() {
		spy.at("access", func() { results <- nil }) // mapped
		att, err := Attach(soon(t), srv.Path(), "data", dev)
		if err == nil {
			got := make([]byte, 5)
			err = errors.Join(cu.CopyToHost(ctx, got, att.Buffer().Ptr()), att.Close())
			if err == nil && string(got) != string(noise(5, 1)) {
				err = errors.New("the producer's bytes are not there")
			}
		}
		results <- err
	}
	go attach()
	require.NoError(t, <-results)
	l := next(t, begun)
	requireLive(t, srv, l)
	l.Revoke()
	require.ErrorIs(t, <-results, ErrRevoked)
	require.ErrorIs(t, awaitEnd(t, srv, l), ErrRevoked)
	s.await(t, Ended, 1)
	require.Eventually(t, func() bool { return len(srv.Leases("data")) == 0 }, 10*time.Second, time.Millisecond)

	go attach()
	require.NoError(t, <-results)
	require.Equal(t, 2, next(t, begun).Number())
	s.start(t, "data", p.Offer)
	require.NoError(t, <-results)
	require.NoError(t, s.end(t), "it was the only one")
}

// If the data was there, the revoked lease uses its place up.
func TestRevokedLeaseCounts(t *testing.T) {
	dev, ctx, srv := listening(t)
	onLease, begun := leases()
	s := put(t, srv, newBuffer(t, ctx, 1), onLease, WithLeases(2))
	a, b := attached(t, srv, "data", dev), attached(t, srv, "data", dev)
	next(t, begun).Revoke()
	require.ErrorIs(t, awaitDone(t, a), ErrRevoked)
	s.await(t, Ended, 1)
	require.Empty(t, s.result)
	require.NoError(t, b.Err())
	next(t, begun).Revoke()
	require.ErrorIs(t, awaitDone(t, b), ErrRevoked)
	require.NoError(t, s.end(t))
}

// A consumer whose lease is revoked as soon as it begins is sent nothing of the offer.
func TestRevokeBeforeAnythingIsSent(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	first := OnLease(func(l *Lease) {
		if l.Number() == 1 {
			l.Revoke()
		}
	})
	for name, c := range map[string]struct{ early, pending bool }{
		"late": {false, false}, "early": {true, false}, "late, pending": {false, true}, "early, pending": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t)
			srv.Expect("data")
			var conn *sock.Conn
			if c.early {
				conn = early(t, srv, wants(dev))
			}
			var s *served
			publish := func() {}
			if c.pending {
				var p *Prepared
				p, s = prepared(t, srv, "data", buf, ReadOnly, first)
				publish = func() { s.start(t, "data", p.Offer) }
			} else {
				s = put(t, srv, buf, first)
			}
			if !c.early {
				conn = asked(t, srv, wants(dev))
			}
			require.IsType(t, wire.Revoke{}, heard(t, conn))
			require.NoError(t, conn.Close())
			require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrRevoked)
			require.Empty(t, s.of(Sent))
			publish()
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
		p, s := prepared(t, srv, "data", buf, ReadOnly, onLease, WithSynchronized())
		conn := asked(t, srv, wants(dev))
		require.IsType(t, wire.Offer{}, heard(t, conn))
		l := next(t, begun)
		go l.Revoke()
		s.start(t, "data", p.Offer)
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

func TestLeasesOfNothing(t *testing.T) {
	srv := listen(t)
	require.Empty(t, srv.Leases("data"))
	srv.Expect("data")
	require.Empty(t, srv.Leases("data"))
}
