package share

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Between the offer and the answer, the end of the offer and that of the server
// are the same to a consumer.
func TestOfferEndsBeforeTheAnswer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for i := range 60 {
		srv := listen(t)
		srv.Expect("data")
		conn := early(t, srv, wants(dev))
		s := put(t, srv, buf)
		s.await(t, Sent, 1)
		closed := make(chan error, 1)
		if i%2 == 0 {
			s.cancel()
			closed <- nil
		} else {
			go func() { closed <- srv.Close() }()
		}
		require.IsType(t, wire.Offer{}, heard(t, conn))
		require.IsType(t, wire.Revoke{}, heard(t, conn))
		require.NoError(t, conn.Close())
		require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrRevoked)
		require.NoError(t, <-closed)
	}
}

// A consumer that waited for an offer is refused for the same reasons as others.
func TestWaitingConsumersAreRefused(t *testing.T) {
	dev, ctx := leavesNothing(t)
	kind := dev.Driver().Kind()
	srv := listen(t)
	srv.Expect("data")
	first := early(t, srv, wants(dev))
	refused := map[*sock.Conn]RefusalCode{
		early(t, srv, wire.Attach{Driver: kind, Access: ReadWrite, Name: "data"}):                    RefusedAccess,
		early(t, srv, wire.Attach{Driver: cu.CUDA + cu.Soft - kind, Access: ReadOnly, Name: "data"}): RefusedKind,
		early(t, srv, wire.Attach{Driver: kind, Access: ReadOnly, Name: ""}):                         RefusedBusy,
	}
	s := serveAs(t, srv, "data", newBuffer(t, ctx, 1), ReadOnly, WithLeases(1))
	for conn, code := range refused {
		requireRefusal(t, conn, code, code.String())
		require.NoError(t, conn.Close())
	}
	require.IsType(t, wire.Offer{}, heard(t, first))
	s.await(t, PeerRefused, len(refused))
	require.NoError(t, first.Close())
	require.ErrorIs(t, s.await(t, Ended, 1).Err, sock.ErrPeerLost)
	require.NoError(t, s.end(t))
}

// An offer that fails ends the wait for it.
func TestFailedOfferRefusesWhoWaits(t *testing.T) {
	spy, dev, ctx := spied(t)
	closed := ok(vmm.New(dev, 1))(t)
	require.NoError(t, closed.Close())
	for name, c := range map[string]struct {
		buf  *vmm.Buffer
		fail string
		want error
	}{
		"nothing to offer": {closed, "", cu.ErrClosed},
		"not synchronized": {newBuffer(t, ctx, 1), "cuCtxSynchronize", cu.ErrOutOfMemory},
	} {
		srv := listen(t)
		srv.Expect("data")
		conn := early(t, srv, wants(dev))
		require.ErrorIs(t, spy.during(c.fail, func() error {
			return srv.Offer(soon(t), "data", c.buf, ReadOnly)
		}), c.want, name)
		requireRefusal(t, conn, RefusedName, name)
		require.NoError(t, conn.Close())
		require.Empty(t, waiting(srv))
		require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev)), ErrRefused, "nobody expects it now")
	}
}

// FAULTS 60: a producer that tells of progress waits for nobody, and nobody waits for a consumer
// that does not read.
func TestFault60_WorkingWaitsForNobody(t *testing.T) {
	dev, _ := leavesNothing(t)
	srv := listen(t)
	srv.Expect("data")
	early(t, srv, wants(dev))
	clog(t, srv, waiting(srv)[0])
	conn := early(t, srv, wants(dev))
	begun, done := time.Now(), make(chan struct{})
	go func() {
		defer close(done)
		for i := range uint64(1000) {
			srv.Working("data", i, 1000)
		}
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		require.FailNow(t, "it waits")
	}
	most := int(time.Since(begun)/broker.ProgressPause) + 1 // however often it is called
	require.Equal(t, wire.Progress{Done: 0, Total: 1000}, heard(t, conn))
	for n := 1; ; n++ {
		require.LessOrEqual(t, n, most)
		if _, err := conn.Receive(briefly(t)); err != nil {
			break
		}
	}
	require.Len(t, waiting(srv), 2)
}

// An observer may call the server, at any event.
func TestObserverMayCallTheServer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf, other := newBuffer(t, ctx, 1), newBuffer(t, ctx, 1)
	srv := listen(t)
	srv.Expect("data")
	over, cancel := context.WithCancel(context.Background())
	cancel()
	calls := func(e Event) {
		srv.Expect("more")
		srv.Working("more", 1, 2)
		srv.Working("data", 1, 2)
		if err := srv.Offer(over, e.Kind.String(), other, ReadOnly, WithSynchronized()); err != nil {
			t.Error(err)
		}
		p, err := srv.Prepare("more", other, ReadOnly)
		if err != nil && !errors.Is(err, ErrNameTaken) { // by an observer in another goroutine
			t.Error(err)
		}
		_ = p.Close()
	}
	conns := []*sock.Conn{early(t, srv, wants(dev)), early(t, srv, wire.Attach{Driver: dev.Driver().Kind(), Access: ReadWrite, Name: "data"})}
	result := make(chan error)
	go func() {
		result <- srv.Offer(soon(t), "data", buf, ReadOnly, WithLeases(2), WithVerdict(), OnEvent(calls))
	}()
	require.Equal(t, wire.Progress{Done: 1, Total: 2}, heard(t, conns[0]), "told by the observer of Offered")
	require.IsType(t, wire.Offer{}, heard(t, conns[0]))
	require.IsType(t, wire.Progress{}, heard(t, conns[1]))
	requireRefusal(t, conns[1], RefusedAccess, "read-write")
	for _, m := range []wire.Message{isMapped(buf), wire.Progress{Done: 1, Total: 2}, wire.Verdict{OK: true, Text: ""}} {
		require.NoError(t, conns[0].Send(soon(t), wire.Encode(m)))
	}
	att := ok(Attach(soon(t), srv.Path(), "data", dev))(t)
	require.NoError(t, att.Report(soon(t), nil))
	require.NoError(t, att.Close())
	require.NoError(t, conns[0].WaitClose(soon(t)))
	require.NoError(t, conns[0].Close())
	require.NoError(t, <-result)
}
