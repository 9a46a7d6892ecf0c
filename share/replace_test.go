package share

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// replace makes buf take the name "data", as put offers it.
func replace(t testing.TB, srv *Server, buf *vmm.Buffer, opts ...OfferOption) *served {
	t.Helper()
	before, s := offeringOf(srv), newServed(srv)
	s.start(t, "data", func(ctx context.Context) error {
		return srv.Replace(ctx, "data", buf, ReadWrite, append([]OfferOption{OnEvent(s.see)}, opts...)...)
	})
	if before != 0 {
		awaitReplaced(t, srv, before)
	}
	return s
}

// offeringOf is what has the name "data".
func offeringOf(srv *Server) broker.OfferID {
	id, _ := offeredAs(srv, "data")
	return id
}

func awaitReplaced(t testing.TB, srv *Server, before broker.OfferID) {
	t.Helper()
	require.Eventually(t, func() bool { return offeringOf(srv) != before }, 10*time.Second, 100*time.Microsecond)
}

func awaitSuperseded(t testing.TB, att *Attachment) {
	t.Helper()
	select {
	case <-att.Superseded():
	case <-soon(t).Done():
		require.FailNow(t, "nobody says that it is superseded")
	}
}

// isSuperseded looks without waiting.
func isSuperseded(att *Attachment) bool {
	select {
	case <-att.Superseded():
		return true
	default:
		return false
	}
}

// goesOn checks that Offer has not returned.
func (s *served) goesOn(t testing.TB) {
	t.Helper()
	select {
	case err := <-s.result:
		s.result <- err
		require.FailNow(t, "Offer has returned", "%v", err)
	case <-briefly(t).Done():
	}
}

// New consumers get the new memory and the others keep what they have, until they leave.
func TestReplace(t *testing.T) {
	dev, ctx, srv := listening(t)
	first, second := newBuffer(t, ctx, 1), newBuffer(t, ctx, 2)
	old := put(t, srv, first)
	a, b := attached(t, srv, "data", dev), attached(t, srv, "", dev)
	fresh := replace(t, srv, second)
	for _, name := range []string{"data", ""} {
		att := attached(t, srv, name, dev)
		require.EqualValues(t, 2, att.Size())
		require.False(t, isSuperseded(att))
	}
	require.Len(t, srv.Leases("data"), 2, "those of the new one")
	for _, att := range []*Attachment{a, b} {
		awaitSuperseded(t, att)
		require.EqualValues(t, 1, att.Size())
		requireNoise(t, ctx, att.Buffer(), 1)
		require.NoError(t, att.Progress(soon(t), 1, 2), "its lease goes on")
	}
	require.NoError(t, a.Close())
	old.goesOn(t)
	require.ErrorIs(t, first.Close(), vmm.ErrInUse)
	require.NoError(t, b.Close())
	require.NoError(t, old.end(t))
	require.NoError(t, old.await(t, Ended, 2).Err)
	require.NoError(t, first.Close())
	require.Empty(t, fresh.of(Ended))
	require.EqualValues(t, 2, attached(t, srv, "data", dev).Size())
}

// A grace period ends the leases of what was replaced, and nobody else's; so does the
// end of its context, and that of the server.
func TestLeasesOfAReplacedOfferEnd(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for name, c := range map[string]struct {
		opts []OfferOption
		end  func(*Server, *served)
		want error // of the offer that is replaced
	}{
		"grace":   {[]OfferOption{WithGrace(brief)}, func(*Server, *served) {}, nil},
		"context": {nil, func(_ *Server, old *served) { old.cancel() }, nil},
		"server":  {[]OfferOption{WithGrace(time.Hour)}, func(s *Server, _ *served) { _ = s.Close() }, ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t)
			old := put(t, srv, buf, c.opts...)
			att := attached(t, srv, "data", dev)
			if name == "grace" {
				outlast(t)
				require.NoError(t, att.Err(), "it has not begun")
			}
			replace(t, srv, buf)
			fresh := attached(t, srv, "data", dev)
			c.end(srv, old)
			require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
			require.ErrorIs(t, old.end(t), c.want)
			require.ErrorIs(t, old.await(t, Ended, 1).Err, ErrRevoked)
			requireNoise(t, ctx, att.Buffer(), 1)
			if c.want == nil {
				require.NoError(t, fresh.Err())
				requireServed(t, srv, ctx)
			}
		})
	}
}

// A Replace that fails leaves the offer that is there as it was, and nobody waiting.
func TestReplaceThatFails(t *testing.T) {
	spy, dev, ctx := spied(t)
	buf := newBuffer(t, ctx, 1)
	over, cancel := context.WithCancel(soon(t))
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		fail string
		opts []OfferOption
		want error
	}{
		"not exported":     {soon(t), exports, nil, cu.ErrOutOfMemory},
		"not synchronized": {soon(t), "cuCtxSynchronize", nil, cu.ErrOutOfMemory},
		"over":             {over, "", []OfferOption{WithSynchronized()}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			srv, next := listen(t), newBuffer(t, ctx, 2) // which was never exported
			old := put(t, srv, buf)
			att := attached(t, srv, "data", dev)
			err := spy.during(c.fail, func() error { return srv.Replace(c.ctx, "data", next, ReadOnly, c.opts...) })
			require.ErrorIs(t, err, c.want)
			require.False(t, isExpected(srv))
			old.goesOn(t)
			require.False(t, isSuperseded(att))
			require.EqualValues(t, 1, attached(t, srv, "data", dev).Size())
			old.stop(t)
			require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev)), ErrRefused)
		})
	}
}

// If the old offer ends while Replace waits for the new memory, consumers that come then wait, too.
func TestOfferEndsBeforeItIsReplaced(t *testing.T) {
	warmUp(t)
	dev, ctx, srv := listening(t)
	old := put(t, srv, newBuffer(t, ctx, 1))
	next := newBuffer(t, ctx, 2)
	h := holding(t, ctx, next)
	s := newServed(srv)
	until, cancel := context.WithCancel(soon(t))
	defer cancel()
	go func() { s.result <- srv.Replace(until, "data", next, ReadOnly, OnEvent(s.see)) }()
	require.Eventually(t, func() bool { return isExpected(srv) }, 10*time.Second, time.Millisecond)
	conn := asked(t, srv, wants(dev))
	require.EqualValues(t, 1, heard(t, conn).(wire.Offer).Memory.Size, "the old one is there")
	require.NoError(t, conn.Close())
	old.cancel()
	conn = early(t, srv, wants(dev)) // at once
	require.NoError(t, old.end(t))
	other := early(t, srv, wants(dev))
	require.NoError(t, h.letGo())
	for _, c := range []*sock.Conn{conn, other} {
		require.EqualValues(t, 2, heard(t, c).(wire.Offer).Memory.Size)
		require.NoError(t, c.Close())
	}
	cancel()
	require.NoError(t, s.end(t))
}

func isExpected(srv *Server) (expected bool) {
	srv.core.Look(func(b *broker.Broker) { expected = b.Expects("data") })
	return expected
}

// The application is asked about the new offer, also for a consumer about which it has
// said yes when the offer was the old one.
func TestAuthorizeIsAskedAboutWhatReplaces(t *testing.T) {
	dev, ctx := leavesNothing(t)
	asked, answer := make(chan uint64), make(chan error)
	srv := listen(t, WithAuthorize(func(_ sock.Peer, o Offer) error {
		asked <- o.Descriptor.Size
		return <-answer
	}))
	put(t, srv, newBuffer(t, ctx, 1))
	for _, verdict := range []error{nil, errSecret} {
		conn := dialed(t, srv)
		require.NoError(t, conn.Send(soon(t), wire.Encode(wants(dev))))
		require.EqualValues(t, 1, <-asked)
		replace(t, srv, newBuffer(t, ctx, 2))
		answer <- nil
		require.EqualValues(t, 2, <-asked)
		answer <- verdict
		if verdict == nil {
			require.EqualValues(t, 2, heard(t, conn).(wire.Offer).Memory.Size)
			replace(t, srv, newBuffer(t, ctx, 1))
		} else {
			require.Equal(t, turnedAway, heard(t, conn))
		}
		require.NoError(t, conn.Close())
	}
}

// Legacy memory replaces a buffer, and a buffer legacy memory, which is kept until its
// last consumer has closed it.
func TestReplaceLegacy(t *testing.T) {
	dev, ctx, srv := listening(t)
	m := newLegacy(t, ctx, 4096)
	old := put(t, srv, newBuffer(t, ctx, 1))
	att := attached(t, srv, "data", dev)
	before, s := offeringOf(srv), newServed(srv)
	s.start(t, "data", func(ctx context.Context) error { return srv.ReplaceLegacy(ctx, "data", m, OnEvent(s.see)) })
	awaitReplaced(t, srv, before)
	awaitSuperseded(t, att)
	require.NoError(t, att.Close())
	require.NoError(t, old.end(t))

	c := start(t, "consumer", srv.Path(), "stop when mapped") // it can be opened in another process alone
	c.says(t, "mapped")
	replace(t, srv, newBuffer(t, ctx, 1))
	requireServed(t, srv, ctx)
	s.goesOn(t)
	require.ErrorIs(t, m.Close(), ErrInUse)
	c.end(t)
	require.NoError(t, s.end(t))
	require.NoError(t, m.Close())
}
