package share

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

const exports = "cuMemExportToShareableHandle"

// Who asks after Prepare waits, and is served by Offer, for which nothing is
// left to be done.
func TestPreparedOffer(t *testing.T) {
	spy, dev, ctx := spied(t)
	buf := newBuffer(t, ctx, 5)
	srv := listen(t)
	p, err := srv.Prepare("data", buf, ReadWrite, WithSynchronized(), WithData([]byte("x")))
	require.NoError(t, err)
	require.Equal(t, 1, spy.count(exports))
	conn := early(t, srv, wants(dev))

	s := begin(t, srv, p)
	m := heard(t, conn).(offer)
	require.Equal(t, buf.Describe(), m.desc)
	require.Equal(t, "x", string(m.data))
	requireServed(t, srv, ctx)
	require.NoError(t, p.Close(), "it does not end the offer")
	requireServed(t, srv, ctx)
	require.ErrorIs(t, p.Offer(soon(t)), ErrClosed)
	requireServed(t, srv, ctx)
	require.Equal(t, 1, spy.count(exports))
	require.NoError(t, conn.Close())
	s.cancel()
	require.NoError(t, s.end(t))
	require.ErrorIs(t, p.Offer(soon(t)), ErrClosed)
	require.NoError(t, p.Close())

	again, err := srv.Prepare("data", buf, ReadWrite)
	require.NoError(t, err)
	require.NoError(t, again.Close())
	require.Equal(t, 1, spy.count(exports), "the buffer remembers")
}

// begin makes an offer that was prepared, as serve does one that was not.
func begin(t testing.TB, srv *Server, p *Prepared) *served {
	t.Helper()
	s := newServed(srv)
	p.o.observe = s.see
	s.start(t, p.o.msg.name, p.Offer)
	return s
}

// Giving up refuses who waits, once, and leaves nothing.
func TestPreparedOfferIsGivenUp(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	_, _, err := buf.Lend() // from now on the buffer remembers one
	require.NoError(t, err)
	srv := listen(t)
	srv.Expect("other")
	before := cutest.Descriptors()
	for range 3 {
		p, err := srv.Prepare("data", buf, ReadOnly)
		require.NoError(t, err)
		require.Equal(t, before, cutest.Descriptors())
		conn := early(t, srv, wants(dev))
		require.NoError(t, p.Close())
		requireRefusal(t, conn, RefusedName, "given up")
		require.NoError(t, conn.Close())
		_, err = Attach(soon(t), srv.Path(), "data", dev)
		require.ErrorIs(t, err, ErrRefused)

		srv.Expect("data") // somebody else's by now
		kept := early(t, srv, wants(dev))
		require.NoError(t, p.Close())
		require.ErrorIs(t, p.Offer(soon(t)), ErrClosed)
		require.Len(t, waiting(srv), 1)
		require.NoError(t, kept.Close())
		require.Eventually(t, func() bool { return len(waiting(srv)) == 0 }, 10*time.Second, time.Millisecond)
	}
	require.Eventually(t, func() bool { return len(srv.places) == 0 }, 10*time.Second, time.Millisecond)
	require.NoError(t, (*Prepared)(nil).Close())
}

func TestPrepareFails(t *testing.T) {
	spy, dev, ctx := spied(t)
	buf := newBuffer(t, ctx, 1)
	srv := listen(t)
	s := serveAs(t, srv, "taken", buf, ReadOnly)
	_, err := srv.Prepare("taken", buf, ReadOnly)
	require.ErrorIs(t, err, ErrNameTaken)
	_, err = srv.Prepare("a\nb", buf, ReadOnly)
	require.Error(t, err)
	_, err = srv.Prepare("data", buf, cu.NoAccess)
	require.Error(t, err)
	_, err = srv.Prepare("data", buf, ReadOnly, WithData(make([]byte, MaxData+1)))
	require.Error(t, err)
	require.Empty(t, srv.expected)

	fresh := newBuffer(t, ctx, 1)
	srv.Expect("data")
	conn := early(t, srv, wants(dev))
	spy.fail(exports)
	_, err = srv.Prepare("data", fresh, ReadOnly)
	require.ErrorIs(t, err, cu.ErrOutOfMemory)
	spy.fail("")
	requireRefusal(t, conn, RefusedName, "nothing to offer")
	require.NoError(t, conn.Close())

	// Two may prepare for one name; the first to offer has it.
	first, err := srv.Prepare("data", fresh, ReadOnly)
	require.NoError(t, err)
	second, err := srv.Prepare("data", fresh, ReadOnly)
	require.NoError(t, err)
	begin(t, srv, first)
	require.ErrorIs(t, second.Offer(soon(t)), ErrNameTaken)
	require.NoError(t, attached(t, srv, "data", dev).Err())

	late, err := srv.Prepare("late", fresh, ReadOnly)
	require.NoError(t, err)
	require.NoError(t, srv.Close())
	require.ErrorIs(t, s.end(t), ErrClosed)
	require.ErrorIs(t, late.Offer(soon(t)), ErrClosed)
	exported := spy.count(exports)
	_, err = srv.Prepare("later", newBuffer(t, ctx, 1), ReadOnly)
	require.ErrorIs(t, err, ErrClosed)
	require.Equal(t, exported, spy.count(exports))
}

// A caller that breaks its word costs itself an offer that nobody can take.
func TestBufferClosedBeforeItsOffer(t *testing.T) {
	dev, _ := leavesNothing(t)
	buf, err := vmm.New(dev, 1)
	require.NoError(t, err)
	srv := listen(t)
	p, err := srv.Prepare("data", buf, ReadOnly)
	require.NoError(t, err)
	waited := early(t, srv, wants(dev))
	require.NoError(t, buf.Close())
	s := begin(t, srv, p)
	requireRefusal(t, waited, RefusedRecord, "nothing to send")
	require.NoError(t, waited.Close())
	_, err = Attach(soon(t), srv.Path(), "data", dev)
	require.ErrorIs(t, err, ErrRefused)
	for i := range 2 {
		require.Error(t, s.await(t, Ended, i+1).Err)
	}
	require.Empty(t, s.of(Sent))
}

// Offer waits for the device's work unless it is told that this was done.
func TestOfferOfSynchronizedMemoryCallsNoDriver(t *testing.T) {
	spy, _, ctx := spied(t)
	buf := newBuffer(t, ctx, 1)
	srv := listen(t)
	for _, opts := range [][]OfferOption{nil, {WithSynchronized()}} {
		p, err := srv.Prepare("data", buf, ReadOnly, opts...)
		require.NoError(t, err)
		before, calls := spy.count("cuCtxSynchronize"), spy.count("")
		s := begin(t, srv, p)
		s.cancel()
		require.NoError(t, s.end(t))
		if opts == nil {
			require.Equal(t, before+1, spy.count("cuCtxSynchronize"))
		} else {
			require.Equal(t, calls, spy.count(""))
		}
	}
}
