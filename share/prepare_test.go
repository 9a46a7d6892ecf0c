package share

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

const exports = "cuMemExportToShareableHandle"

// A consumer that comes after Prepare, or waited for it, gets the descriptors, and hears of the data
// by Offer, which has nothing else left to do. The buffer cannot be closed from Prepare until the offer
// has ended.
//
//fault:rows 78
func TestPreparedOffer(t *testing.T) {
	spy, dev, ctx := spied(t)
	buf := newBuffer(t, ctx, 5)
	srv := listen(t, ListenOptions{peer: goodbyes(brief)})
	expect(srv, "data")
	waited := early(t, srv, wants(dev))
	p, s := prepared(t, srv, "data", buf, cu.ReadWrite, OfferOptions{Synchronized: true, Data: []byte("x")})
	require.ErrorIs(t, buf.Close(), vmm.ErrInUse)
	calls := spy.count("")
	conns := []*sock.Conn{waited, asked(t, srv, wants(dev)), asked(t, srv, wire.Attach{Driver: dev.Driver().Kind(), Access: cu.ReadWrite, Name: ""})}
	for _, conn := range conns {
		m := heard(t, conn).(wire.Offer)
		require.True(t, m.Pending)
		require.Equal(t, buf.Describe(), m.Memory)
		require.Equal(t, "x", string(m.Data))
	}

	s.start(t, "data", p.offer)
	for i, conn := range conns {
		require.Equal(t, wire.Publish(isMapped(buf)), heard(t, conn))
		require.NoError(t, conn.Send(soon(t), wire.Encode(isMapped(buf))))
		s.await(t, Mapped, i+1)
	}
	require.False(t, heard(t, asked(t, srv, wants(dev))).(wire.Offer).Pending, "the data is there")
	require.Equal(t, calls, spy.count(""), "the driver was called")
	require.NoError(t, p.Close(), "it does not end the offer")
	require.ErrorIs(t, p.offer(soon(t)), ErrClosed)
	requireServed(t, srv, ctx)
	require.ErrorIs(t, buf.Close(), vmm.ErrInUse)
	s.stop(t)
	require.NoError(t, buf.Close())
}

// asked is a connection that has asked for an offer that is there, or prepared.
func asked(t testing.TB, srv *Server, want wire.Attach) *sock.Conn {
	t.Helper()
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(want)))
	return conn
}

// A consumer attaches while the data is in the making: the memory is mapped
// before, and Attach returns after it is there.
func TestFault68_AttachWhileTheDataIsInTheMaking(t *testing.T) {
	spy, dev, ctx := spied(t)
	g := granularity(t, dev)
	buf := newBuffer(t, ctx, (sock.MaxFDs+1)*g, vmm.WithChunkSize(g)) // several records
	srv := listen(t)
	table := noise(5000, 3) // more than a record has room for
	p, s := prepared(t, srv, "data", buf, cu.ReadOnly, OfferOptions{Data: table})
	ready, result := make(chan struct{}), make(chan *Attachment, 1)
	spy.at("access", func() { close(ready) })
	go func() {
		att, err := Attach(soon(t), srv.Path(), "data", dev, nil)
		if err != nil {
			t.Error(err)
		}
		result <- att
	}()
	<-ready
	working(srv, "data", 1, 2) // is no data
	<-briefly(t).Done()
	require.Empty(t, result, "attached to data that is not there")
	require.NoError(t, cu.CopyToDevice(ctx, buf.Ptr(), noise(buf.Size(), 7)))
	s.start(t, "data", p.offer)
	att := <-result
	requireNoise(t, ctx, att.Buffer(), 7)
	require.Equal(t, table, att.Offer().Data)
	s.await(t, Mapped, 1)
	require.NoError(t, att.Close())
	require.NoError(t, s.await(t, Ended, 1).Err)
}

// No consumer takes data that was not published for finished, however the offer ends. A consumer
// that stops waiting says why.
func TestFault4_DataThatNeverComes(t *testing.T) {
	spy, dev, ctx := spied(t)
	buf := newBuffer(t, ctx, 1)
	for name, c := range map[string]struct {
		end     func(*Server, *preparedOffer, context.CancelFunc) error // once the memory is mapped
		timeout time.Duration                                           // from then on
		want    error
		says    string // the consumer
	}{
		"given up":      {func(_ *Server, p *preparedOffer, _ context.CancelFunc) error { return p.Close() }, serve.DefaultTimeout, ErrWithdrawn, ""},
		"server closed": {func(s *Server, _ *preparedOffer, _ context.CancelFunc) error { return s.Close() }, serve.DefaultTimeout, ErrWithdrawn, ""},
		"never":         {func(*Server, *preparedOffer, context.CancelFunc) error { return nil }, brief, ErrTimeout, "took too long"},
		"canceled":      {func(_ *Server, _ *preparedOffer, cancel context.CancelFunc) error { cancel(); return nil }, serve.DefaultTimeout, context.Canceled, "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t)
			p, s := prepared(t, srv, "data", buf, cu.ReadOnly)
			until, cancel := context.WithCancel(soon(t))
			defer cancel()
			ended := make(chan error, 1)
			spy.at("access", func() { go func() { ended <- c.end(srv, p, cancel) }() })
			err := errOf(Attach(until, srv.Path(), "data", dev, &AttachOptions{peer: spy.timeoutAt("access", c.timeout)}))
			require.ErrorIs(t, err, c.want)
			require.NoError(t, <-ended)
			if c.says != "" {
				require.ErrorContains(t, s.await(t, Verdict, 1).Err, c.says)
				require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrVerdict)
			}
		})
	}
}

// A consumer that breaks the protocol or goes before the data is there loses its place, and costs
// nobody else anything.
func TestBeforeTheDataIsThere(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for name, c := range map[string]struct {
		do   func(*testing.T, *sock.Conn)
		want error // and not ErrNoVerdict, because none is owed before the data
	}{
		"gone":       {func(t *testing.T, c *sock.Conn) { require.NoError(t, c.Close()) }, sock.ErrPeerLost},
		"mapped":     {isRefused(isMapped(buf)), serve.ErrUnexpected},
		"good":       {isRefused(wire.Verdict{OK: true, Text: ""}), serve.ErrUnexpected},
		"cannot":     {says(wire.Verdict{OK: false, Text: "no room"}), ErrVerdict},
		"superseded": {isRefused(wire.Superseded{Generation: 1}), serve.ErrUnexpected},
	} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t)
			p, s := prepared(t, srv, "data", buf, cu.ReadOnly, OfferOptions{MaxConsumers: 1, Verdict: true})
			conn := asked(t, srv, wants(dev))
			require.True(t, heard(t, conn).(wire.Offer).Pending)
			c.do(t, conn)
			err := s.await(t, Ended, 1).Err
			require.ErrorIs(t, err, c.want)
			require.NotErrorIs(t, err, ErrNoVerdict)
			require.Eventually(t, func() bool { return len(leasesAs(srv, "data")) == 0 }, 10*time.Second, time.Millisecond)

			next := asked(t, srv, wants(dev)) // the only place is free again
			require.True(t, heard(t, next).(wire.Offer).Pending)
			s.start(t, "data", p.offer)
			require.Equal(t, wire.Publish(isMapped(buf)), heard(t, next))
			require.NoError(t, next.Close())
			require.NoError(t, s.end(t))
		})
	}
}

func says(m wire.Message) func(*testing.T, *sock.Conn) {
	return func(t *testing.T, c *sock.Conn) { require.NoError(t, c.Send(soon(t), wire.Encode(m))) }
}

// isRefused says m, is told that it should not have, and goes.
func isRefused(m wire.Message) func(*testing.T, *sock.Conn) {
	return func(t *testing.T, c *sock.Conn) {
		says(m)(t, c)
		require.Equal(t, wire.RefusedRecord, heard(t, c).(wire.Refuse).Code)
		require.NoError(t, c.Close())
	}
}

// A consumer that was told that the data is to come takes no other answer for it.
func TestLiesAboutTheData(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	pending := tr.say(func(o *wire.Offer) { o.Pending = true }, tr.files...)
	for m, want := range map[wire.Message]error{
		wire.Publish{Generation: tr.Memory.Generation + 1}: serve.ErrUnexpected,
		wire.Mapped{Generation: tr.Memory.Generation}:      serve.ErrUnexpected,
		wire.Refuse{Code: wire.RefusedBusy, Text: "no"}:    ErrRefused,
		wire.Revoke{Text: ""}:                              ErrRevoked,
	} {
		path := impostor(t, tell(t, pending, lie{record: wire.Encode(m)}))
		require.ErrorIs(t, errOf(Attach(soon(t), path, "data", dev, nil)), want, "%v", m)
	}
}

// prepared is an offer that is prepared, and what is told of it; start starts it.
func prepared(t testing.TB, srv *Server, name string, buf *vmm.Buffer, access cu.Access, opts ...OfferOptions) (*preparedOffer, *served) {
	t.Helper()
	s := newServed(srv)
	p := ok(prepare(srv, name, buf, access, s.watching(opts)))(t)
	t.Cleanup(func() { _ = p.Close() }) // the buffer's Close would be refused
	return p, s
}

// Giving up is done once, and leaves nothing.
func TestPreparedOfferIsGivenUp(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	exportOnce(t, buf)
	open := cutest.Descriptors()
	p := ok(prepare(srv, "data", buf, cu.ReadOnly))(t)
	require.Equal(t, open, cutest.Descriptors(), "it holds none of its own")
	require.NoError(t, p.Close())
	p = ok(prepare(srv, "data", buf, cu.ReadOnly))(t)
	conn := asked(t, srv, wants(dev))
	require.True(t, heard(t, conn).(wire.Offer).Pending)
	require.NoError(t, p.Close())
	require.IsType(t, wire.Revoke{}, heard(t, conn))
	require.NoError(t, conn.Close())
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev, nil)), ErrRefused)

	expect(srv, "data") // somebody else's by now
	early(t, srv, wants(dev))
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.offer(soon(t)), ErrClosed)
	require.Len(t, waiting(srv), 1)
}

func TestPrepareFails(t *testing.T) {
	spy, dev, ctx := spied(t)
	srv, fresh := listen(t), newBuffer(t, ctx, 1)
	require.Error(t, errOf(prepare(srv, "data", fresh, cu.ReadOnly, OfferOptions{Data: make([]byte, MaxData+1)})))
	require.False(t, stands(srv, "data"))
	expect(srv, "data")
	conn := early(t, srv, wants(dev))
	full := spy.Fail(exports, cu.ErrOutOfMemory)
	require.ErrorIs(t, errOf(prepare(srv, "data", fresh, cu.ReadOnly)), cu.ErrOutOfMemory)
	full.Stop()
	requireRefusal(t, conn, wire.RefusedName, "nothing to offer")
	require.NoError(t, conn.Close())

	first, s := prepared(t, srv, "data", fresh, cu.ReadOnly)
	require.ErrorIs(t, errOf(prepare(srv, "data", fresh, cu.ReadOnly)), ErrNameTaken)
	require.ErrorIs(t, offerFor(soon(t), srv, "data", fresh, cu.ReadOnly), ErrNameTaken)
	s.start(t, "data", first.offer)
	require.ErrorIs(t, errOf(prepare(srv, "data", fresh, cu.ReadOnly)), ErrNameTaken)

	late := ok(prepare(srv, "late", fresh, cu.ReadOnly))(t)
	require.NoError(t, srv.Close())
	require.ErrorIs(t, s.end(t), ErrClosed)
	require.ErrorIs(t, late.offer(soon(t)), ErrClosed)
	require.False(t, stands(srv, "late"))
	require.ErrorIs(t, errOf(prepare(srv, "later", fresh, cu.ReadOnly)), ErrClosed)
}
