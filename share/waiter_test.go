package share

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/broker"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// wants is a wish for "data", read-only.
func wants(dev *cu.Device) wire.Attach {
	return wire.Attach{Driver: dev.Driver().Kind(), Access: cu.ReadOnly, Name: "data", Capabilities: wire.TakesLegacy}
}

// clog fills the queue of a consumer that does not read, and returns with how
// many records.
func clog(t *testing.T, srv *Server, to broker.Waiter) (n int) {
	t.Helper()
	for {
		err := srv.core.Conn(to.Session).TrySend(wire.Encode(wire.Progress{Done: 1, Total: 2}))
		if err != nil {
			require.ErrorIs(t, err, sock.ErrWouldWait)
			return n
		}
		n++
	}
}

// manyRecords is a buffer, of zeros, whose offer takes two records.
func manyRecords(t *testing.T, dev *cu.Device) *vmm.Buffer {
	t.Helper()
	g := granularity(t, dev)
	buf := ok(vmm.New(dev, (sock.MaxFDs+1)*g, vmm.WithChunkSize(g)))(t)
	t.Cleanup(func() { require.NoError(t, buf.Close()) })
	return buf
}

// largeData makes a record of an offer so long that one fills the queue up again.
var largeData = make([]byte, wire.MaxData)

// A consumer that comes before an expected offer waits, hears of the producer's progress, and
// gets the offer. One that asks for a name that is not expected is refused at once.
func TestEarlyConsumerWaitsForAnExpectedOffer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	for _, name := range []string{"data", ""} {
		srv := listen(t)
		expect(srv, "data")
		expect(srv, "data")
		working(srv, "data", 1, 4)
		working(srv, "other", 2, 4)
		want := wants(dev)
		want.Name = name
		conn := asked(t, srv, want)
		require.Equal(t, wire.Progress{Done: 1, Total: 4, Capabilities: wire.TakesDetach}, heard(t, conn))
		var no *serve.RefusalError
		require.ErrorAs(t, errOf(Attach(soon(t), srv.Path(), "other", dev, nil)), &no)
		require.Equal(t, wire.RefusedName, no.Code)

		s := put(t, srv, newBuffer(t, ctx, 1))
		require.IsType(t, wire.Offer{}, heard(t, conn))
		require.NoError(t, conn.Close())
		s.await(t, Ended, 1)
		requireServed(t, srv, ctx)
	}
}

// A waiting consumer hears how far the producer is, before the offer and, if that was prepared,
// before the data.
func TestOnProgress(t *testing.T) {
	dev, ctx, srv := listening(t)
	expect(srv, "data")
	working(srv, "data", 1, 4)
	heard, attached := make(chan [2]uint64, 10), make(chan error, 1)
	go func() {
		att, err := Attach(soon(t), srv.Path(), "data", dev, &AttachOptions{OnProgress: func(done, total uint64) { heard <- [2]uint64{done, total} }})
		if err == nil {
			err = att.Close()
		}
		attached <- err
	}()
	require.Equal(t, [2]uint64{1, 4}, <-heard)
	p, s := prepared(t, srv, "data", newBuffer(t, ctx, 1), cu.ReadOnly)
	require.Eventually(t, func() bool {
		working(srv, "data", 3, 4)
		return len(heard) > 0
	}, 30*time.Second, broker.ProgressPause/10)
	require.Equal(t, [2]uint64{3, 4}, <-heard)
	s.start(t, "data", p.offer)
	require.NoError(t, <-attached)
}

// FAULTS 64: closing ends the wait.
func TestFault64_ServerClosedWhileAConsumerWaits(t *testing.T) {
	dev, _, srv := listening(t)
	expect(srv, "data")
	conn := early(t, srv, wants(dev))
	closed := make(chan error, 1)
	go func() { closed <- srv.Close() }()
	requireRefusal(t, conn, wire.RefusedName, "closed")
	require.NoError(t, conn.Close())
	require.NoError(t, <-closed)
	expect(srv, "late") // nothing comes of it
	working(srv, "late", 1, 2)
}

// FAULTS 60: a producer that tells of progress waits for nobody, and nobody waits for a consumer
// that does not read.
func TestFault60_WorkingWaitsForNobody(t *testing.T) {
	dev, _, srv := listening(t)
	expect(srv, "data")
	early(t, srv, wants(dev))
	clog(t, srv, waiting(srv)[0])
	conn := early(t, srv, wants(dev))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range uint64(1000) {
			working(srv, "data", i, 1000)
		}
	}()
	select {
	case <-done:
	case <-soon(t).Done():
		require.FailNow(t, "it waits")
	}
	require.Equal(t, wire.Progress{Done: 0, Total: 1000, Capabilities: wire.TakesDetach}, heard(t, conn))
	require.Len(t, waiting(srv), 2)
}

// A consumer that waits but does not read is sent its offer as it reads, each
// record once; a consumer that reads has it meanwhile.
func TestWaitingConsumerThatReadsLate(t *testing.T) {
	dev, _, srv := listening(t)
	buf := manyRecords(t, dev)
	expect(srv, "data")
	late := early(t, srv, wants(dev))
	n := clog(t, srv, waiting(srv)[0])
	heard(t, late) // room for the first record of the offer, and no more
	prompt := early(t, srv, wants(dev))
	s := put(t, srv, buf, OfferOptions{Data: largeData})

	require.Equal(t, 64, heard(t, prompt).(wire.Offer).FDs)
	require.Equal(t, 1, heard(t, prompt).(wire.Offer).FDs)
	require.Equal(t, 2, s.await(t, Sent, 1).Lease)
	require.NoError(t, prompt.Send(soon(t), wire.Encode(isMapped(buf))))
	require.Equal(t, 2, s.await(t, Mapped, 1).Lease)
	require.Len(t, s.of(Sent), 1, "the other does not read")

	for range n - 1 {
		require.IsType(t, wire.Progress{}, heard(t, late))
	}
	for _, first := range []int{0, 64} {
		require.Equal(t, first, heard(t, late).(wire.Offer).First)
	}
	require.Equal(t, 1, s.await(t, Sent, 2).Lease)
	require.NoError(t, late.Send(soon(t), wire.Encode(isMapped(buf))))
	s.await(t, Mapped, 2)
}

// A consumer that does not read, while the rest of its offer waits to be sent, costs other
// consumers nothing, whatever happens.
func TestWaitingConsumerThatDoesNotRead(t *testing.T) {
	type caseOf struct {
		timeout time.Duration // of the lease
		then    func(t *testing.T, s *served, conn *sock.Conn)
		want    error // of the lease
		offer   error // of the offer
	}
	dev, _ := leavesNothing(t)
	sideBySide(t, map[string]caseOf{
		"fault 30: goes": {serve.DefaultTimeout, func(t *testing.T, _ *served, conn *sock.Conn) {
			require.NoError(t, conn.Close())
		}, sock.ErrPeerLost, nil},
		"fault 60: stays": {brief, func(*testing.T, *served, *sock.Conn) {}, ErrTimeout, nil},
		"fault 31: speaks before it reads": {serve.DefaultTimeout, func(t *testing.T, s *served, conn *sock.Conn) {
			require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Verdict{OK: true, Text: ""})))
			no, refused := heard(t, conn).(wire.Refuse)
			for !refused {
				no, refused = heard(t, conn).(wire.Refuse)
			}
			require.Equal(t, wire.RefusedRecord, no.Code)
			require.NoError(t, conn.Close())
		}, serve.ErrUnexpected, nil},
		"fault 64: stays, and the offer ends": {serve.DefaultTimeout, func(_ *testing.T, s *served, _ *sock.Conn) {
			s.cancel()
		}, ErrWithdrawn, nil},
		"fault 64: stays, and the server is closed": {serve.DefaultTimeout, func(t *testing.T, s *served, _ *sock.Conn) {
			require.NoError(t, s.Close())
		}, ErrWithdrawn, ErrClosed},
	}, func(t *testing.T, name string, c caseOf) {
		buf := manyRecords(t, dev)
		srv := listen(t)
		expect(srv, "data")
		conn := early(t, srv, wants(dev))
		clog(t, srv, waiting(srv)[0])
		heard(t, conn)
		last := serve.DefaultTimeout
		if strings.Contains(name, "stays") {
			last = brief
		}
		s := put(t, srv, buf, OfferOptions{Data: largeData, terms: both(timeoutFrom(Connected, 1, c.timeout), goodbyeIn(1, last))})
		s.await(t, Connected, 1)
		other := attached(t, srv, "data", dev)
		c.then(t, s, conn)
		ended := s.await(t, Ended, 1)
		if c.want != ErrWithdrawn {
			require.NoError(t, other.Err())
			s.cancel()
		}
		require.ErrorIs(t, s.end(t), c.offer)
		if ended.Lease != 1 {
			ended = s.await(t, Ended, 2)
		}
		require.ErrorIs(t, ended.Err, c.want)
		if c.want != ErrWithdrawn {
			require.NotErrorIs(t, ended.Err, context.Canceled, "nobody did")
		}
	})
}

// A consumer that has waited and then says nothing is not waited for longer
// than others.
func TestWaitingConsumerThatDoesNotAnswer(t *testing.T) {
	dev, ctx, srv := listening(t, ListenOptions{Timeout: brief})
	conn := asked(t, srv, wants(dev)) // which is there when the server begins to wait for it
	expect(srv, "data")
	awaitWaiting(t, srv, 1)
	outlast(t) // as long as it likes, before
	require.Len(t, waiting(srv), 1)
	s := put(t, srv, newBuffer(t, ctx, 1))
	err := s.await(t, Ended, 1).Err
	require.ErrorIs(t, err, ErrTimeout)
	require.NotErrorIs(t, err, context.Canceled)
	require.IsType(t, wire.Offer{}, heard(t, conn))
	requireRefusal(t, conn, wire.RefusedTimeout, "silence")
}

// A consumer that waits for the only offer is told the name of the one that fails.
func TestOnlyOfferThatFails(t *testing.T) {
	dev, ctx, srv := listening(t)
	expect(srv, "weights")
	want := wants(dev)
	want.Name = ""
	conn := early(t, srv, want)
	over := newBuffer(t, ctx, 1)
	require.NoError(t, over.Close())
	require.Error(t, offerFor(soon(t), srv, "weights", over, cu.ReadOnly))
	require.Equal(t, wire.Refuse{Code: wire.RefusedName, Text: `there is no offer "weights" here`}, heard(t, conn))
	require.NoError(t, conn.Close())
}
