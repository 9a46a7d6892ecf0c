package share

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// TestFault59_ConnectionsOfOneProcess: one process does not get all the places, is told so, and gets others
// when it gives some back.
func TestFault59_ConnectionsOfOneProcess(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t, WithConnectionsPerPeer(2))
	s := put(t, srv, newBuffer(t, ctx, 1))
	held := attached(t, srv, "", dev)
	for i := range 3 {
		silent := dialed(t, srv)
		require.Eventually(t, func() bool { return connections(srv) == 2 }, 10*time.Second, time.Millisecond)
		_, err := Attach(soon(t), srv.Path(), "", dev)
		var no *RefusalError
		require.ErrorAs(t, err, &no)
		require.Equal(t, RefusedBusy, no.Code)
		require.Equal(t, "the producer has 2 connections of this process, and takes no more of it", no.Text)
		require.ErrorContains(t, s.await(t, PeerRefused, 2*i+1).Err, "2 connections of this process")
		require.NoError(t, silent.Close())
		s.await(t, PeerRefused, 2*i+2) // it said nothing
		require.Eventually(t, func() bool { return connections(srv) == 1 }, 10*time.Second, time.Millisecond)
		requireServed(t, srv, ctx)
		require.Eventually(t, func() bool { return connections(srv) == 1 }, 10*time.Second, time.Millisecond)
	}
	require.NoError(t, held.Err())
}

// A consumer that waits for an expected offer takes up a connection, so no more consumers wait
// than connections are allowed.
func TestWaitingConsumersHavePlaces(t *testing.T) {
	dev, ctx := leavesNothing(t)
	for name, opt := range map[string]ListenOption{"in all": WithConnections(3), "of one process": WithConnectionsPerPeer(3)} {
		srv := listen(t, opt)
		srv.Expect("data")
		var conns []*sock.Conn
		for range 3 {
			conns = append(conns, early(t, srv, wants(dev)))
		}
		for range 20 {
			more := dialed(t, srv)
			requireRefusal(t, more, RefusedBusy, name)
			require.NoError(t, more.Close())
		}
		require.Len(t, waiting(srv), 3)
		s := put(t, srv, newBuffer(t, ctx, 1))
		for _, conn := range conns {
			requireOffered(t, conn, false)
			require.NoError(t, conn.Close())
		}
		s.await(t, Ended, 3)
	}
}

// flood sends n records of progress, as fast as can be, while they are taken.
func flood(t *testing.T, conn *sock.Conn, n int) {
	for i := range n {
		if conn.Send(soon(t), wire.Encode(wire.Progress{Done: uint64(i), Total: uint64(n)})) != nil {
			return // the peer has had enough
		}
	}
}

// A consumer that floods costs its own connection; one that sends as much as it may
// does not.
func TestFloodOfAConsumer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	const rate = 20
	srv := listen(t, WithRecordRate(rate))
	s := put(t, srv, newBuffer(t, ctx, 1))
	bystander := attached(t, srv, "", dev)
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wants(dev))))
	requireOffered(t, conn, false)
	flood(t, conn, rate-2) // and what it has said so far
	require.NoError(t, bystander.Progress(soon(t), 1, 2))
	s.await(t, Progress, rate-1)
	require.Empty(t, s.of(Ended))
	flood(t, conn, 10*rate)
	err := s.await(t, Ended, 1).Err
	require.ErrorIs(t, err, ErrRate)
	require.ErrorContains(t, err, "more than 20")
	requireRefusal(t, conn, RefusedRate, "a flood")
	require.NoError(t, conn.Close())
	require.NoError(t, bystander.Err())
	requireServed(t, srv, ctx)
}

func TestFloodThatIsAllowed(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t, WithRecordRate(0))
	s := put(t, srv, newBuffer(t, ctx, 1))
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wants(dev))))
	requireOffered(t, conn, false)
	flood(t, conn, 2*1000)
	s.await(t, Progress, 2*1000)
	require.NoError(t, conn.Close())
	require.NoError(t, s.await(t, Ended, 1).Err)
}

// A producer that floods is left, at whichever step, and is told why.
func TestFloodOfAProducer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	good := tr.say(nil, tr.files...)
	pending := tr.say(func(o *wire.Offer) { o.Pending = true }, tr.files...)
	for name, before := range map[string][]lie{"before its offer": nil, "before its data is there": {pending}, "after its offer": {good}} {
		t.Run(name, func(t *testing.T) {
			said := make(chan wire.Message, 1)
			att, err := Attach(soon(t), impostor(t, func(conn *sock.Conn) {
				for _, l := range before {
					assert.NoError(t, conn.Send(soon(t), l.record, l.files...))
				}
				flood(t, conn, 10000)
				said <- lastWord(t, conn)
			}), "data", dev, WithRecordRate(30))
			if name == "after its offer" {
				require.NoError(t, err)
				err = awaitDone(t, att)
				require.NoError(t, att.Close())
			}
			require.ErrorIs(t, err, ErrRate)
			no, ok := (<-said).(wire.Refuse)
			require.True(t, ok)
			require.Equal(t, RefusedRate, no.Code)
		})
	}
}

// lastWord is the last message on conn before its end.
func lastWord(t *testing.T, conn *sock.Conn) (last wire.Message) {
	for {
		rec, err := conn.Receive(soon(t))
		if err != nil {
			return last
		}
		if last, err = wire.Decode(rec.Data); err != nil {
			t.Error(err)
		}
	}
}

// An offer that is larger than a consumer takes is refused with its first record,
// and nothing of it is imported; one that is as large as that is taken.
//
//fault:rows 76
func TestOffersThatAreTooLarge(t *testing.T) {
	spy, dev, ctx := spied(t)
	g := granularity(t, dev)
	srv := listen(t)
	s := put(t, srv, newBuffer(t, ctx, 2*g+1, vmm.WithChunkSize(g)))
	for i, opt := range []AttachOption{WithMaxChunks(3), WithMaxSize(2*g + 1), WithMaxSize(0)} {
		att := ok(Attach(soon(t), srv.Path(), "", dev, opt))(t)
		require.NoError(t, att.Close())
		require.NoError(t, s.await(t, Ended, i+1).Err)
	}
	imports, n := spy.count("cuMemImportFromShareableHandle"), 3
	for why, opt := range map[string]AttachOption{
		"3 chunks; want 2 at most": WithMaxChunks(2), "3 chunks; want 1 at most": WithMaxChunks(1), " bytes at most": WithMaxSize(2 * g),
	} {
		_, err := Attach(soon(t), srv.Path(), "", dev, opt)
		require.ErrorIs(t, err, ErrTooLarge)
		require.ErrorContains(t, err, why)
		n++
		told := s.await(t, Ended, n).Err
		require.ErrorIs(t, told, ErrVerdict)
		require.ErrorContains(t, told, why, "the producer is told")
	}
	require.Equal(t, imports, spy.count("cuMemImportFromShareableHandle"))
}

// Invariant 2: what a producer may lie about is bounded, too.
func TestLiesThatAreTooLarge(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	for name, c := range map[string]struct {
		lie lie
		opt AttachOption
	}{
		"many chunks":    {tr.say(func(o *wire.Offer) { o.Memory.Chunks = vmm.MaxChunks }, tr.files...), WithMaxChunks(vmm.MaxChunks - 1)},
		"a large chunk":  {tr.say(func(o *wire.Offer) { o.Memory.Size, o.Memory.ChunkSize = 1, 1<<62 }, tr.files...), WithMaxSize(1 << 40)},
		"an empty chunk": {tr.say(func(o *wire.Offer) { o.Memory.Size, o.Memory.ChunkSize = 1, 4<<20 }, tr.files...), WithMaxSize(2 << 20)},
		"beyond 64 bits": {tr.say(func(o *wire.Offer) { o.Memory.ChunkSize = 1 << 63 }, tr.files...), WithMaxSize(1<<64 - 1)},
	} {
		said := make(chan wire.Message, 1)
		_, err := Attach(soon(t), impostor(t, func(conn *sock.Conn) {
			assert.NoError(t, conn.Send(soon(t), c.lie.record, c.lie.files...))
			said <- heard(t, conn) // the rest of the offer is not waited for
		}), "data", dev, c.opt)
		require.ErrorIs(t, err, ErrTooLarge, name)
		require.IsType(t, wire.Verdict{}, <-said, name)
	}
}

// Every record that there is fits what either side takes.
func TestMostRecord(t *testing.T) {
	text := strings.Repeat("x", 2*wire.MaxText)
	for _, m := range []wire.Message{
		wire.Attach{Name: text[:wire.MaxName]}, wire.Offer{Name: text[:wire.MaxName], Data: []byte(text[:wire.MaxData])}, wire.Refuse{Text: text}, wire.Progress{}, wire.Mapped{},
		wire.Verdict{Text: text}, wire.Revoke{Text: text}, wire.Publish{}, wire.Confirm{},
		wire.Offer{Name: text[:wire.MaxName], Data: []byte(text[:wire.MaxData]), Legacy: &LegacyHandle{}},
	} {
		require.LessOrEqual(t, len(wire.Encode(m)), wire.MaxRecord, "type %d", m.Type())
	}
}

// TestFault21and23_RecordsBeyondTheLimits: a peer that sends more than either side ever takes costs its own
// connection, and none of its descriptors gets in.
func TestFault21and23_RecordsBeyondTheLimits(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	null := ok(os.Open(os.DevNull))(t)
	for i, c := range []struct {
		size, fds int
		want      error
	}{{wire.MaxRecord + 1, 0, sock.ErrTruncated}, {20, 1, sock.ErrTooManyFDs}, {20, 253, sock.ErrTooManyFDs}} {
		conn := dialed(t, srv)
		if sendRaw(t, conn, make([]byte, c.size), null, c.fds) {
			requireRefusal(t, conn, RefusedRecord, c.want.Error())
		} else {
			c.want = sock.ErrPeerLost
		}
		require.NoError(t, conn.Close())
		require.ErrorIs(t, s.await(t, PeerRefused, i+1).Err, c.want)
	}
	require.NoError(t, null.Close())
	require.ErrorIs(t, errOf(Attach(soon(t), impostor(t, tell(t, lie{make([]byte, wire.MaxRecord+1), nil})), "data", dev)), sock.ErrTruncated)
	requireServed(t, srv, ctx)
}
