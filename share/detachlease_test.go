package share

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// detachedRaw is a raw connection that has mapped the memory and says DETACHED.
func detachedRaw(t testing.TB, srv *Server, s *served, want wire.Attach, generation, keep uint64) *sock.Conn {
	t.Helper()
	conn := asked(t, srv, want)
	require.NotZero(t, heard(t, conn).(wire.Offer).Capabilities&wire.TakesDetach)
	n := len(s.of(Detached)) + 1
	for _, m := range []wire.Message{wire.Mapped{Generation: generation}, wire.Detached{Keep: keep}} {
		require.NoError(t, conn.Send(soon(t), wire.Encode(m)))
	}
	s.await(t, Detached, n)
	return conn
}

// A detached lease goes on: the producer tells the application, and goes on telling the consumer of newer memory
// and notices. After its end the consumer counts as one that has released the memory.
func TestDetachedLease(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	onLease, begun := leases()
	s := put(t, srv, buf, OfferOptions{OnLease: onLease})
	want := wants(dev)
	want.Process.Told = true
	generation := buf.Describe().Generation
	conn := detachedRaw(t, srv, s, want, generation, 0)
	l := next(t, begun)
	require.True(t, l.Detached())
	require.False(t, (*Lease)(nil).Detached())
	require.False(t, new(Lease).Detached())
	requireLive(t, srv, l)
	require.NoError(t, l.Notify(soon(t), []byte("x")))
	require.Equal(t, wire.Notice{Data: []byte("x")}, heard(t, conn))

	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Detached{Keep: 60_000})))
	s.await(t, Detached, 2)
	require.NoError(t, conn.Close())
	requireLost(t, awaitEnd(t, srv, l))
	require.NoError(t, l.AwaitFence(soon(t), fence.Released), "it had said that it has nothing mapped")
}

// The lease of a consumer that was detached for longer than it said is taken back. A second DETACHED sets the time
// anew.
func TestDetachedForTooLong(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	s := put(t, srv, buf)
	generation := buf.Describe().Generation
	conn := detachedRaw(t, srv, s, wants(dev), generation, 5)
	require.Equal(t, wire.Revoke{Text: "it was detached for longer than the 0.005 s that it asked for", Reason: wire.EndRevoked}, heard(t, conn))
	require.NoError(t, conn.Close())
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrRevoked)

	conn = detachedRaw(t, srv, s, wants(dev), generation, uint64(brief/time.Millisecond))
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Detached{})))
	s.await(t, Detached, 3)
	outlast(t)
	require.Len(t, s.of(Ended), 1)
	require.NoError(t, conn.Close())
	s.await(t, Ended, 2)
}

// A consumer that says DETACHED where it may not is refused.
func TestDetachedOutOfTurn(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	serveAs(t, srv, "data", buf, cu.ReadWrite)
	serveAs(t, srv, "cursors", buf, cu.ReadOnly, OfferOptions{CursorSize: 4096, OnCursors: func(*Lease, *os.File) error { return nil }})
	mapped, detached := isMapped(buf), wire.Detached{}
	for name, c := range map[string]struct {
		offer  string
		access cu.Access
		says   []wire.Message
	}{
		"before the memory is mapped": {"data", cu.ReadOnly, []wire.Message{detached}},
		"it may write":                {"data", cu.ReadWrite, []wire.Message{mapped, detached}},
		"it has cursors":              {"cursors", cu.ReadOnly, []wire.Message{mapped, detached}},
		"and maps again":              {"data", cu.ReadOnly, []wire.Message{mapped, detached, mapped}},
	} {
		want := wants(dev)
		want.Name, want.Access, want.Capabilities = c.offer, c.access, wire.TakesCursors
		conn := asked(t, srv, want)
		heard(t, conn)
		if c.offer == "cursors" {
			require.Equal(t, wire.Cursors{}, heard(t, conn))
		}
		for _, m := range c.says {
			require.NoError(t, conn.Send(soon(t), wire.Encode(m)), name)
		}
		requireRefusal(t, conn, wire.RefusedRecord, name)
		require.NoError(t, conn.Close())
	}
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(detached)))
	requireRefusal(t, conn, wire.RefusedRecord, "without a lease")
}

// A consumer that reattaches is sent the descriptors again, also of memory that was replaced, and takes over the place
// of its detached lease.
func TestReattachedLease(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf, newer := newBuffer(t, ctx, 1), newBuffer(t, ctx, 1)
	s := put(t, srv, buf, OfferOptions{MaxConsumers: 1})
	want := wants(dev)
	generation := buf.Describe().Generation
	old := detachedRaw(t, srv, s, want, generation, 0)
	replacing := serveAs(t, srv, "data", newer, cu.ReadOnly, OfferOptions{terms: replacing})
	require.Equal(t, wire.Superseded{Generation: newer.Describe().Generation}, heard(t, old))

	want.Reattach = generation
	conn := asked(t, srv, want)
	o := heard(t, conn).(wire.Offer)
	require.Equal(t, 1, o.FDs)
	require.Equal(t, generation, o.Memory.Generation)
	require.Equal(t, wire.Superseded{Generation: newer.Describe().Generation}, heard(t, conn))
	for i, m := range []wire.Message{isMapped(buf), wire.Farewell{}} {
		require.NoError(t, []*sock.Conn{conn, old}[i].Send(soon(t), wire.Encode(m)))
	}
	require.NoError(t, old.Close())
	s.await(t, Ended, 1)
	require.NoError(t, conn.Close())
	require.NoError(t, s.end(t), "the last lease of memory that was replaced has ended")

	refused := asked(t, srv, want)
	requireRefusal(t, refused, wire.RefusedStale, "nobody has the memory any more")
	require.Empty(t, replacing.of(Connected))
}
