package share

import (
	"context"
	"testing"
	"time"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Giving up is done once, and leaves nothing.
func TestPreparedOfferIsGivenUp(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	exportOnce(t, buf)
	srv := listen(t)
	srv.Expect("other")
	before := withoutProcesses()
	for range 3 {
		p := ok(srv.Prepare("data", buf, ReadOnly))(t)
		require.Equal(t, before, withoutProcesses())
		conn := asked(t, srv, wants(dev))
		require.True(t, heard(t, conn).(wire.Offer).Pending)
		require.NoError(t, conn.Close())
		require.NoError(t, p.Close())
		require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev)), ErrRefused)

		srv.Expect("data") // somebody else's by now
		kept := early(t, srv, wants(dev))
		require.NoError(t, p.Close())
		require.ErrorIs(t, p.Offer(soon(t)), ErrClosed)
		require.Len(t, waiting(srv), 1)
		require.NoError(t, kept.Close())
		require.Eventually(t, func() bool { return connections(srv) == 0 }, 10*time.Second, time.Millisecond)
		require.Empty(t, waiting(srv))
	}
	require.NoError(t, (*Prepared)(nil).Close())
}

// withoutProcesses are the open descriptors but for those of processes: a server watches a
// process that has had a lease.
func withoutProcesses() map[string]int {
	open := cutest.Descriptors()
	delete(open, "anon_inode:[pidfd]")
	return open
}

func TestPrepareFails(t *testing.T) {
	spy, dev, ctx := spied(t)
	buf := newBuffer(t, ctx, 1)
	srv := listen(t)
	s := serveAs(t, srv, "taken", buf, ReadOnly)
	require.ErrorIs(t, errOf(srv.Prepare("taken", buf, ReadOnly)), ErrNameTaken)
	require.Error(t, errOf(srv.Prepare("a\nb", buf, ReadOnly)))
	require.Error(t, errOf(srv.Prepare("data", buf, cu.NoAccess)))
	require.Error(t, errOf(srv.Prepare("data", buf, ReadOnly, WithData(make([]byte, MaxData+1)))))
	require.False(t, stands(srv, "data"))

	fresh := newBuffer(t, ctx, 1)
	srv.Expect("data")
	conn := early(t, srv, wants(dev))
	full := spy.Fail(exports, cu.ErrOutOfMemory)
	require.ErrorIs(t, errOf(srv.Prepare("data", fresh, ReadOnly)), cu.ErrOutOfMemory)
	full.Stop()
	requireRefusal(t, conn, RefusedName, "nothing to offer")
	require.NoError(t, conn.Close())

	first, served := prepared(t, srv, "data", fresh, ReadOnly)
	require.ErrorIs(t, errOf(srv.Prepare("data", fresh, ReadOnly)), ErrNameTaken)
	require.ErrorIs(t, srv.Offer(soon(t), "data", fresh, ReadOnly), ErrNameTaken)
	served.start(t, "data", first.Offer)
	require.NoError(t, attached(t, srv, "data", dev).Err())

	late := ok(srv.Prepare("late", fresh, ReadOnly))(t)
	require.NoError(t, srv.Close())
	require.ErrorIs(t, s.end(t), ErrClosed)
	require.ErrorIs(t, late.Offer(soon(t)), ErrClosed)
	exported := spy.count(exports)
	require.ErrorIs(t, errOf(srv.Prepare("later", newBuffer(t, ctx, 1), ReadOnly)), ErrClosed)
	require.Equal(t, exported, spy.count(exports))
}

// A buffer cannot be closed from the time that an offer of it is prepared until the
// offer has ended.
//
//fault:rows 78
func TestBufferIsNotClosedBeforeItsOffer(t *testing.T) {
	dev, _ := leavesNothing(t)
	buf := ok(vmm.New(dev, 1))(t)
	srv := listen(t)
	p, s := prepared(t, srv, "data", buf, ReadOnly)
	require.ErrorIs(t, buf.Close(), vmm.ErrInUse)
	s.start(t, "data", p.Offer)
	attached(t, srv, "data", dev)
	require.ErrorIs(t, buf.Close(), vmm.ErrInUse)
	s.stop(t)
	require.NoError(t, buf.Close())
}

// Offer waits for the device's work unless it is told that this was done.
func TestOfferOfSynchronizedMemoryCallsNoDriver(t *testing.T) {
	spy, _, ctx := spied(t)
	buf := newBuffer(t, ctx, 1)
	srv := listen(t)
	for _, opts := range [][]OfferOption{nil, {WithSynchronized()}} {
		p, s := prepared(t, srv, "data", buf, ReadOnly, opts...)
		before, calls := spy.count("cuCtxSynchronize"), spy.count("")
		s.start(t, "data", p.Offer)
		s.stop(t)
		if opts == nil {
			require.Equal(t, before+1, spy.count("cuCtxSynchronize"))
		} else {
			require.Equal(t, calls, spy.count(""))
		}
	}
}

// An offer that the server's end keeps from being put up admits nobody any more.
func TestServerEndsBeforeItsOffer(t *testing.T) {
	_, ctx, srv := listening(t)
	p := ok(srv.Prepare("data", newBuffer(t, ctx, 1), ReadOnly))(t)
	require.NoError(t, srv.Close())
	require.ErrorIs(t, p.Offer(soon(t)), ErrClosed)
	require.False(t, stands(srv, "data"))
}

// A consumer that stops waiting for the data says why.
func TestConsumerThatWaitsForDataNoLonger(t *testing.T) {
	spy, dev, ctx := spied(t)
	buf := newBuffer(t, ctx, 1)
	for name, c := range map[string]struct {
		timeout time.Duration // once it has mapped the memory
		want    error
		says    string
	}{
		"out of patience": {brief, ErrTimeout, "took too long"},
		"ended":           {DefaultTimeout, context.Canceled, "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			srv := listen(t)
			p, s := prepared(t, srv, "data", buf, ReadOnly)
			until, cancel := context.WithCancel(soon(t))
			defer cancel()
			if c.want == context.Canceled {
				spy.at("access", func() { time.AfterFunc(10*time.Millisecond, cancel) })
			}
			require.ErrorIs(t, errOf(Attach(until, srv.Path(), "data", dev, WithRoom(1), spy.timeoutAt("access", c.timeout))), c.want)
			require.ErrorContains(t, s.await(t, Verdict, 1).Err, c.says)
			require.NoError(t, p.Close())
			require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrVerdict)
		})
	}
}

// A consumer owes no verdict on data that is not there.
func TestNoVerdictIsOwedBeforeTheData(t *testing.T) {
	dev, ctx, srv := listening(t)
	p, s := prepared(t, srv, "data", newBuffer(t, ctx, 1), ReadOnly, WithVerdict())
	conn := asked(t, srv, wants(dev))
	require.True(t, heard(t, conn).(wire.Offer).Pending)
	require.NoError(t, conn.Close())
	err := s.await(t, Ended, 1).Err
	require.ErrorIs(t, err, sock.ErrPeerLost)
	require.NotErrorIs(t, err, ErrNoVerdict)
	require.NoError(t, p.Close())
}
