package share

import (
	"testing"
	"time"

	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/sock"
)

// A consumer that comes before an expected offer waits, hears of the producer's progress, and
// gets the offer.
func TestEarlyConsumerWaitsForAnExpectedOffer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	for _, name := range []string{"data", ""} {
		srv := listen(t)
		srv.Expect("data")
		srv.Expect("data")
		srv.Working("data", 1, 4)
		srv.Working("other", 2, 4)
		early := dialed(t, srv)
		require.NoError(t, early.Send(soon(t), wire.Encode(wire.Attach{Driver: dev.Driver().Kind(), Access: ReadOnly, Name: name})))
		rec := ok(early.Receive(soon(t)))(t)
		m := ok(wire.Decode(rec.Data))(t)
		require.Equal(t, wire.Progress{Done: 1, Total: 4}, m)

		s := put(t, srv, newBuffer(t, ctx, 1))
		rec = ok(early.Receive(soon(t)))(t)
		m = ok(wire.Decode(rec.Data))(t)
		require.IsType(t, wire.Offer{}, m)
		require.Len(t, rec.Files, 1)
		require.NoError(t, rec.Close())
		require.NoError(t, early.Close())
		s.await(t, Ended, 1)
		requireServed(t, srv, ctx)
		require.NoError(t, srv.Close())
	}
}

// A waiting consumer hears how far the producer is, before the offer and, if that was prepared,
// before the data.
func TestOnProgress(t *testing.T) {
	dev, ctx, srv := listening(t)
	srv.Expect("data")
	srv.Working("data", 1, 4)
	heard, attached := make(chan [2]uint64, 10), make(chan error, 1)
	go func() {
		att, err := Attach(soon(t), srv.Path(), "data", dev, OnProgress(func(done, total uint64) { heard <- [2]uint64{done, total} }))
		if err == nil {
			err = att.Close()
		}
		attached <- err
	}()
	require.Equal(t, [2]uint64{1, 4}, <-heard)
	p, s := prepared(t, srv, "data", newBuffer(t, ctx, 1), ReadOnly)
	require.Eventually(t, func() bool {
		srv.Working("data", 3, 4)
		return len(heard) > 0
	}, 30*time.Second, broker.ProgressPause/10)
	require.Equal(t, [2]uint64{3, 4}, <-heard)
	s.start(t, "data", p.Offer)
	require.NoError(t, <-attached)
	require.ErrorContains(t, errOf(Attach(soon(t), srv.Path(), "data", dev, OnProgress(nil))), "OnProgress without a function")
}

// A consumer that asks for a name that is not expected is refused at once.
func TestUnexpectedNameIsNotWaitedFor(t *testing.T) {
	dev, _ := leavesNothing(t)
	srv := listen(t)
	srv.Expect("data")
	_, err := Attach(soon(t), srv.Path(), "other", dev)
	var no *RefusalError
	require.ErrorAs(t, err, &no)
	require.Equal(t, RefusedName, no.Code)
	srv.Expect("more")
	require.ErrorAs(t, errOf(Attach(soon(t), srv.Path(), "", dev)), &no, "it is not the only one")
}

// A name may be expected again while there is an offer of it: consumers get that one,
// until it ends, and those that come after its end get the next.
func TestExpectBeforeTheEndOfAnOffer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	for _, name := range []string{"data", ""} {
		want := wants(dev)
		want.Name = name
		srv := listen(t)
		first := put(t, srv, newBuffer(t, ctx, 1))
		att := attached(t, srv, name, dev)
		srv.Expect("data")
		require.EqualValues(t, 1, attached(t, srv, name, dev).Size())
		require.ErrorIs(t, srv.Offer(soon(t), "data", newBuffer(t, ctx, 2), ReadOnly), ErrNameTaken)
		first.cancel()
		conns := []*sock.Conn{early(t, srv, want)}
		require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
		require.NoError(t, att.Close())
		require.NoError(t, first.end(t))
		conns = append(conns, early(t, srv, want))
		srv.Working("data", 1, 4)
		second := put(t, srv, newBuffer(t, ctx, 2))
		for _, conn := range conns {
			require.Equal(t, wire.Progress{Done: 1, Total: 4}, heard(t, conn))
			require.EqualValues(t, 2, heard(t, conn).(wire.Offer).Memory.Size)
			require.NoError(t, conn.Close())
		}
		second.stop(t)
		require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "data", dev)), ErrRefused, "the wait was for one offer")
		require.NoError(t, srv.Close())
	}
}

// FAULTS 64: closing ends the wait.
func TestFault64_ServerClosedWhileAConsumerWaits(t *testing.T) {
	dev, _ := leavesNothing(t)
	srv := listen(t)
	srv.Expect("data")
	srv.Working("data", 1, 2)
	waits := make(chan struct{})
	result := make(chan error)
	conn := ok(sock.Dial(soon(t), srv.Path()))(t)
	go func() {
		err := conn.Send(soon(t), wire.Encode(wire.Attach{Driver: dev.Driver().Kind(), Access: ReadOnly, Name: "data"}))
		if err == nil {
			_, err = conn.Receive(soon(t)) // progress
		}
		close(waits)
		if err == nil {
			var m wire.Message
			m, _, err = hearer(conn).Receive(soon(t), false)
			if err == nil {
				err = serve.Unexpected(m, "")
			}
		}
		_ = conn.Close()
		result <- err
	}()
	<-waits
	require.NoError(t, srv.Close())
	require.ErrorIs(t, <-result, ErrRefused)
	srv.Expect("late") // nothing comes of it
	srv.Working("late", 1, 2)
}
