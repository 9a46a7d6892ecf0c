package share

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

const exports = "cuMemExportToShareableHandle"

// A consumer that comes after Prepare, or waited for it, gets the descriptors, and hears of the data
// by Offer, which has nothing else left to do.
func TestPreparedOffer(t *testing.T) {
	spy, dev, ctx := spied(t)
	buf := newBuffer(t, ctx, 5)
	srv := listen(t, goodbyes(brief))
	srv.Expect("data")
	waited := early(t, srv, wants(dev))
	p, s := prepared(t, srv, "data", buf, ReadWrite, WithSynchronized(), WithData([]byte("x")))
	require.Equal(t, 1, spy.count(exports))
	conns := []*sock.Conn{waited, asked(t, srv, wants(dev)), asked(t, srv, wire.Attach{Driver: dev.Driver().Kind(), Access: ReadWrite, Name: ""})}
	for _, conn := range conns {
		m := heard(t, conn).(wire.Offer)
		require.True(t, m.Pending)
		require.Equal(t, buf.Describe(), m.Memory)
		require.Equal(t, "x", string(m.Data))
	}

	s.start(t, "data", p.Offer)
	for i, conn := range conns {
		require.Equal(t, wire.Publish(isMapped(buf)), heard(t, conn))
		require.NoError(t, conn.Send(soon(t), wire.Encode(isMapped(buf))))
		s.await(t, Mapped, i+1)
	}
	require.False(t, heard(t, asked(t, srv, wants(dev))).(wire.Offer).Pending, "the data is there")
	requireServed(t, srv, ctx)
	require.NoError(t, p.Close(), "it does not end the offer")
	requireServed(t, srv, ctx)
	require.ErrorIs(t, p.Offer(soon(t)), ErrClosed)
	requireServed(t, srv, ctx)
	require.Equal(t, 1, spy.count(exports))
	s.stop(t)
	require.ErrorIs(t, p.Offer(soon(t)), ErrClosed)
	require.NoError(t, p.Close())

	again := ok(srv.Prepare("data", buf, ReadWrite))(t)
	require.NoError(t, again.Close())
	require.Equal(t, 1, spy.count(exports), "the buffer remembers")
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
	for name, chunks := range map[string]uint64{"one record": 1, "several records": sock.MaxFDs + 1} {
		t.Run(name, func(t *testing.T) {
			buf := newBuffer(t, ctx, chunks*g, vmm.WithChunkSize(g))
			srv := listen(t)
			p, s := prepared(t, srv, "data", buf, ReadOnly)
			ready, result := make(chan struct{}), make(chan *Attachment, 1)
			go func() {
				spy.at("access", func() { close(ready) })
				att, err := Attach(soon(t), srv.Path(), "data", dev)
				if err != nil {
					t.Error(err)
				}
				result <- att
			}()
			<-ready
			srv.Working("data", 1, 2) // is no data
			select {
			case <-result:
				require.Fail(t, "attached to data that is not there")
			case <-time.After(20 * time.Millisecond):
			}
			want := noise(4096, 7)
			require.NoError(t, cu.CopyToDevice(ctx, buf.Ptr(), want))
			s.start(t, "data", p.Offer)
			att := <-result
			require.NotNil(t, att)
			got := make([]byte, len(want))
			require.NoError(t, cu.CopyToHost(ctx, got, att.Buffer().Ptr()))
			require.Equal(t, want, got)
			s.await(t, Mapped, 1)
			require.NoError(t, att.Close())
			require.NoError(t, s.await(t, Ended, 1).Err)
			require.NoError(t, srv.Close())
		})
	}
}

// No consumer takes data that was not published for finished, however the offer ends.
func TestFault4_DataThatNeverComes(t *testing.T) {
	spy, dev, ctx := spied(t)
	buf := newBuffer(t, ctx, 1)
	for name, c := range map[string]struct {
		end     func(*Server, *Prepared) error
		timeout time.Duration // once it has mapped the memory
		want    error
	}{
		"given up":      {func(_ *Server, p *Prepared) error { return p.Close() }, DefaultTimeout, ErrRevoked},
		"server closed": {func(s *Server, _ *Prepared) error { return s.Close() }, DefaultTimeout, ErrRevoked},
		"never":         {func(*Server, *Prepared) error { return nil }, brief, ErrTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t)
			p := ok(srv.Prepare("data", buf, ReadOnly))(t)
			ready, result := make(chan struct{}), make(chan error, 1)
			go func() {
				spy.at("access", func() { close(ready) })
				att, err := Attach(soon(t), srv.Path(), "data", dev, spy.timeoutAt("access", c.timeout))
				result <- errors.Join(err, att.Close())
			}()
			select {
			case <-ready:
			case err := <-result:
				require.NoError(t, err, "it did not get to mapping")
			}
			require.NoError(t, c.end(srv, p))
			require.ErrorIs(t, <-result, c.want)
			require.NoError(t, p.Close())
		})
	}
}

// An offer that is over before it begins is none: nobody is told of its data.
func TestOfferThatIsOverAlready(t *testing.T) {
	dev, ctx, srv := listening(t)
	p, s := prepared(t, srv, "data", newBuffer(t, ctx, 1), ReadOnly, WithSynchronized())
	conn := asked(t, srv, wants(dev))
	require.True(t, heard(t, conn).(wire.Offer).Pending)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	done := make(chan error, 1)
	go func() { done <- p.Offer(over) }()
	require.IsType(t, wire.Revoke{}, heard(t, conn))
	require.NoError(t, conn.Close())
	require.NoError(t, <-done)
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrRevoked)
	require.Empty(t, s.of(Offered))
}

// A consumer that breaks the protocol or goes before the data is there loses its place, and costs
// nobody else anything.
func TestBeforeTheDataIsThere(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for name, c := range map[string]struct {
		do   func(*testing.T, *sock.Conn)
		want error
	}{
		"gone":        {func(t *testing.T, c *sock.Conn) { require.NoError(t, c.Close()) }, sock.ErrPeerLost},
		"mapped":      {isRefused(isMapped(buf)), ErrProtocol},
		"good":        {isRefused(wire.Verdict{OK: true, Text: ""}), ErrProtocol},
		"cannot":      {says(wire.Verdict{OK: false, Text: "no room"}), ErrVerdict},
		"asks again":  {isRefused(wants(dev)), ErrProtocol},
		"works on it": {isRefused(wire.Progress{Done: 1, Total: 2}), ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t)
			p, s := prepared(t, srv, "data", buf, ReadOnly, WithLeases(1))
			conn := asked(t, srv, wants(dev))
			require.True(t, heard(t, conn).(wire.Offer).Pending)
			c.do(t, conn)
			require.ErrorIs(t, s.await(t, Ended, 1).Err, c.want)
			require.Eventually(t, func() bool { return len(srv.Leases("data")) == 0 }, 10*time.Second, time.Millisecond)

			next := asked(t, srv, wants(dev)) // the only place is free again
			require.True(t, heard(t, next).(wire.Offer).Pending)
			s.start(t, "data", p.Offer)
			require.Equal(t, wire.Publish(isMapped(buf)), heard(t, next))
			require.NoError(t, next.Send(soon(t), wire.Encode(isMapped(buf))))
			s.await(t, Mapped, 1)
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
		require.Equal(t, RefusedRecord, heard(t, c).(wire.Refuse).Code)
		require.NoError(t, c.Close())
	}
}

// A consumer that was told takes no other answer for it.
func TestLiesAboutTheData(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for name, c := range map[string]struct {
		m    wire.Message
		want error
	}{
		"another generation": {wire.Publish{Generation: buf.Describe().Generation + 1}, ErrProtocol},
		"another offer":      {isMapped(buf), ErrProtocol},
		"a refusal":          {wire.Refuse{Code: RefusedBusy, Text: "no"}, ErrRefused},
		"taken back":         {wire.Revoke{Text: ""}, ErrRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			l := ok(sock.Listen(socketPath(t)))(t)
			defer l.Close()
			d, files, err := buf.Export()
			require.NoError(t, err)
			defer sock.CloseFiles(files)
			over := make(chan struct{})
			defer func() { <-over }()
			go func() {
				defer close(over)
				conn, err := l.Accept(soon(t))
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = conn.Receive(soon(t)) // what it wants
				_ = conn.Send(soon(t), wire.Encode(wire.Offer{Memory: d, Access: ReadOnly, Name: "data", FDs: 1, Pending: true}), files...)
				_ = conn.Send(soon(t), wire.Encode(c.m))
				_, _ = conn.Receive(soon(t)) // what it says to that, or its end
			}()
			require.ErrorIs(t, errOf(Attach(soon(t), l.Path(), "data", dev)), c.want)
		})
	}
}

// prepared is an offer that is prepared, and what is told of it; start starts it.
func prepared(t testing.TB, srv *Server, name string, buf *vmm.Buffer, access cu.Access, opts ...OfferOption) (*Prepared, *served) {
	t.Helper()
	s := newServed(srv)
	p := ok(srv.Prepare(name, buf, access, append([]OfferOption{OnEvent(s.see)}, opts...)...))(t)
	t.Cleanup(func() { _ = p.Close() }) // the buffer's Close would be refused
	return p, s
}
