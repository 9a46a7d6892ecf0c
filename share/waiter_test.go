package share

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpufd/gpufd/share/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// wants is a wish for "data", read-only.
func wants(dev *cu.Device) wire.Attach {
	return wire.Attach{Driver: dev.Driver().Kind(), Access: ReadOnly, Name: "data", Capabilities: wire.TakesLegacy}
}

// clog fills the queue of a consumer that does not read, and returns with how
// many records.
func clog(t *testing.T, w *waiter) (n int) {
	t.Helper()
	for {
		err := w.visitor.conn.TrySend(wire.Encode(wire.Progress{Done: 1, Total: 2}))
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
	buf, err := vmm.New(dev, (sock.MaxFDs+1)*g, vmm.WithChunkSize(g))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, buf.Close()) })
	return buf
}

// large makes a record of an offer so long that one fills the queue up again.
func large() OfferOption { return WithData(make([]byte, MaxData)) }

// A consumer that waits but does not read is sent its offer as it reads, each
// record once; who reads has it meanwhile.
func TestWaitingConsumerThatReadsLate(t *testing.T) {
	dev, _ := leavesNothing(t)
	buf := manyRecords(t, dev)
	srv := listen(t)
	srv.Expect("data")
	late := early(t, srv, wants(dev))
	n := clog(t, waiting(srv)[0])
	heard(t, late) // room for the first record of the offer, and no more
	prompt := early(t, srv, wants(dev))
	s := serve(t, srv, buf, large())

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
	for i, conn := range []*sock.Conn{late, prompt} {
		require.NoError(t, conn.Close())
		require.NoError(t, s.await(t, Ended, i+1).Err)
	}
}

// What may happen while the rest of an offer waits to be
// sent. It costs the others nothing.
func TestWaitingConsumerThatDoesNotRead(t *testing.T) {
	type caseOf struct {
		timeout time.Duration // of the lease
		then    func(t *testing.T, s *served, conn *sock.Conn)
		want    error // of the lease
		offer   error // of the offer
	}
	dev, _ := leavesNothing(t)
	sideBySide(t, map[string]caseOf{
		"fault 30: goes": {DefaultTimeout, func(t *testing.T, _ *served, conn *sock.Conn) {
			require.NoError(t, conn.Close())
		}, sock.ErrPeerLost, nil},
		"fault 30: speaks and goes": {DefaultTimeout, func(t *testing.T, _ *served, conn *sock.Conn) {
			require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Verdict{OK: true, Text: ""})))
			require.NoError(t, conn.Close())
		}, sock.ErrPeerLost, nil},
		"fault 60: stays": {brief, func(*testing.T, *served, *sock.Conn) {}, ErrTimeout, nil},
		"fault 31: speaks before it reads": {DefaultTimeout, func(t *testing.T, s *served, conn *sock.Conn) {
			require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Verdict{OK: true, Text: ""})))
			for m := heard(t, conn); m != nil; m = heard(t, conn) {
				if no, ok := m.(wire.Refuse); ok {
					require.Equal(t, RefusedRecord, no.Code)
					break
				}
			}
			require.NoError(t, conn.Close())
		}, ErrProtocol, nil},
		"fault 64: stays, and the offer ends": {DefaultTimeout, func(_ *testing.T, s *served, _ *sock.Conn) {
			s.cancel()
		}, ErrRevoked, nil},
		"stays, and is revoked": {DefaultTimeout, func(_ *testing.T, s *served, _ *sock.Conn) {
			s.Leases("data")[0].Revoke()
		}, ErrRevoked, nil},
		"fault 64: stays, and the server is closed": {DefaultTimeout, func(t *testing.T, s *served, _ *sock.Conn) {
			require.NoError(t, s.Close())
		}, ErrRevoked, ErrClosed},
	}, func(t *testing.T, name string, c caseOf) {
		buf := manyRecords(t, dev)
		srv := listen(t)
		srv.Expect("data")
		conn := early(t, srv, wants(dev))
		clog(t, waiting(srv)[0])
		heard(t, conn)
		last := DefaultTimeout
		if strings.Contains(name, "stays") {
			last = brief
		}
		s := serve(t, srv, buf, large(), timeoutFrom(Connected, 1, c.timeout), goodbyeIn(1, last))
		s.await(t, Connected, 1)
		other := attached(t, srv, "data", dev)
		c.then(t, s, conn)
		ended := s.await(t, Ended, 1)
		if name == "stays, and is revoked" {
			require.NoError(t, other.Err(), "the others are not")
			s.cancel()
		}
		if c.offer == nil && c.want != ErrRevoked {
			require.NoError(t, other.Err())
			require.NoError(t, other.Close())
			s.await(t, Ended, 2)
			s.cancel()
		}
		require.ErrorIs(t, s.end(t), c.offer)
		if ended.Lease != 1 {
			ended = s.await(t, Ended, 2)
		}
		require.ErrorIs(t, ended.Err, c.want)
		if c.want != ErrRevoked {
			require.NotErrorIs(t, ended.Err, context.Canceled, "nobody did")
		}
	})
}

// FAULTS 31: what a consumer may answer that has waited for the offer.
func TestFault31_BadAnswersOfWaitingConsumers(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t)
	srv.Expect("data")
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	conns, order := map[string]*sock.Conn{}, []string{}
	for name := range badAnswers(dev.Driver().Kind()) {
		conns[name] = early(t, srv, wants(dev))
		order = append(order, name)
	}
	s := serve(t, srv, newBuffer(t, ctx, 1))
	answers := badAnswers(dev.Driver().Kind())
	for name, c := range answers {
		conn := conns[name]
		require.IsType(t, wire.Offer{}, heard(t, conn))
		if sendRaw(t, conn, c.record, null, c.fds) {
			requireAnswer(t, conn, c.want, name)
		} else {
			answers[name] = answer{want: sock.ErrPeerLost}
		}
		require.NoError(t, conn.Close())
	}
	require.NoError(t, null.Close())
	s.await(t, Ended, len(order))
	for _, e := range s.of(Ended) {
		name := order[e.Lease-1]
		require.ErrorIs(t, e.Err, answers[name].want, name)
	}
	requireServed(t, srv, ctx)
}

// Who speaks before there is an offer is refused, and told why.
func TestWaitingConsumersThatSpeak(t *testing.T) {
	dev, _ := leavesNothing(t)
	srv := listen(t)
	srv.Expect("data")
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	answers := badAnswers(dev.Driver().Kind())
	answers["maps what is not there"] = answer{wire.Encode(wire.Mapped{Generation: 1}), 0, ErrProtocol}
	for name, c := range answers {
		conn := early(t, srv, wants(dev))
		if sendRaw(t, conn, c.record, null, c.fds) {
			requireAnswer(t, conn, c.want, name)
		}
		require.NoError(t, conn.Close())
		require.Eventually(t, func() bool { return len(waiting(srv)) == 0 }, 10*time.Second, time.Millisecond)
	}
	require.NoError(t, null.Close())
}

// A consumer that has waited and then says nothing is not waited for longer
// than others.
func TestWaitingConsumerThatDoesNotAnswer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t, WithTimeout(brief))
	conn := asked(t, srv, wants(dev)) // which is there when the server begins to wait for it
	srv.Expect("data")
	awaitWaiting(t, srv, 1)
	outlast(t) // as long as it likes, before
	require.Len(t, waiting(srv), 1)
	s := serve(t, srv, newBuffer(t, ctx, 1))
	err := s.await(t, Ended, 1).Err
	require.ErrorIs(t, err, ErrTimeout)
	require.NotErrorIs(t, err, context.Canceled)
	require.IsType(t, wire.Offer{}, heard(t, conn))
	requireRefusal(t, conn, RefusedTimeout, "silence")
}

// Nor is one that has answered cut off when it would have been.
func TestWaitingConsumerThatHasAnsweredMayBeSilent(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t)
	srv.Expect("data")
	conn := early(t, srv, wants(dev))
	w := waiting(srv)[0]
	buf := newBuffer(t, ctx, 1)
	s := serve(t, srv, buf)
	require.IsType(t, wire.Offer{}, heard(t, conn))
	require.NoError(t, conn.Send(soon(t), wire.Encode(isMapped(buf))))
	s.await(t, Mapped, 1)
	w.stop(ErrTimeout) // as its timer would, if it came late
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Progress{Done: 1, Total: 2})))
	s.await(t, Progress, 1)
	require.Empty(t, s.of(Ended))
	require.NoError(t, conn.Close())
	require.NoError(t, s.await(t, Ended, 1).Err)
}

// Between the offer and the answer, the end of the offer and that of the server
// are the same to a consumer.
func TestOfferEndsBeforeTheAnswer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for i := range 60 {
		srv := listen(t)
		srv.Expect("data")
		conn := early(t, srv, wants(dev))
		s := serve(t, srv, buf)
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

// Who waited for an offer is refused what others are.
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

// "" is the only offer there is, when it is there.
func TestWaitingForTheOnlyOffer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	srv := listen(t)
	srv.Expect("data")
	conn := early(t, srv, wire.Attach{Driver: dev.Driver().Kind(), Access: ReadOnly, Name: ""})
	serveAs(t, srv, "other", buf, ReadOnly)
	require.Len(t, waiting(srv), 1)
	serve(t, srv, buf)
	requireRefusal(t, conn, RefusedName, "there are two")
}

// An offer that fails ends the wait for it.
func TestFailedOfferRefusesWhoWaits(t *testing.T) {
	spy, dev, ctx := spied(t)
	closed, err := vmm.New(dev, 1)
	require.NoError(t, err)
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
		spy.fail(c.fail)
		require.ErrorIs(t, srv.Offer(soon(t), "data", c.buf, ReadOnly), c.want, name)
		spy.fail("")
		requireRefusal(t, conn, RefusedName, name)
		require.NoError(t, conn.Close())
		require.Empty(t, waiting(srv))
		_, err := Attach(soon(t), srv.Path(), "data", dev)
		require.ErrorIs(t, err, ErrRefused, "nobody expects it now")
	}
}

// FAULTS 60: to tell of progress waits for nobody, and nobody waits for one that
// does not read.
func TestFault60_WorkingWaitsForNobody(t *testing.T) {
	dev, _ := leavesNothing(t)
	srv := listen(t)
	srv.Expect("data")
	early(t, srv, wants(dev))
	clog(t, waiting(srv)[0])
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
	most := int(time.Since(begun)/progressPause) + 1 // however often it is called
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
	att, err := Attach(soon(t), srv.Path(), "data", dev)
	require.NoError(t, err)
	require.NoError(t, att.Report(soon(t), nil))
	require.NoError(t, att.Close())
	require.NoError(t, conns[0].WaitClose(soon(t)))
	require.NoError(t, conns[0].Close())
	require.NoError(t, <-result)
}
