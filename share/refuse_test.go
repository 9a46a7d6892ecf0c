package share

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// flaw returns the record of m with one part of its header changed.
func flaw(m wire.Message, offset int, b ...byte) []byte {
	r := wire.Encode(m)
	copy(r[offset:], b)
	return r
}

// Invariant 2: each bad first record costs its own connection, is answered unless it is a refusal,
// and leaves another consumer alone.
func TestBadFirstRecordsCostTheirOwnConnection(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	bystander := attached(t, srv, "", dev)
	kind, good := dev.Driver().Kind(), wants(dev)
	n := 0
	for name, c := range map[string]struct {
		record []byte
		code   wire.RefusalCode // or 0: no answer
	}{
		"fault 27: wrong magic":        {flaw(good, 0, []byte("GPFE")...), wire.RefusedRecord},
		"fault 27: older version":      {flaw(good, 4, 0, 0), wire.RefusedVersion},
		"fault 27: newer version":      {flaw(good, 4, 2, 0), wire.RefusedVersion},
		"fault 27: unknown type":       {flaw(good, 6, 99, 0), wire.RefusedUnsupported},
		"fault 27: unknown flags":      {flaw(good, 8, 0, 0, 1, 0), wire.RefusedUnsupported},
		"fault 28: length 0":           {flaw(good, 12, 0, 0, 0, 0), wire.RefusedRecord},
		"fault 28: length 2^32-1":      {flaw(good, 12, 0xff, 0xff, 0xff, 0xff), wire.RefusedRecord},
		"fault 29: random bytes":       {noise(300, 5), wire.RefusedRecord},
		"fault 32: one byte at a time": {[]byte{'G'}, wire.RefusedRecord},
		"fault 30: cut off":            {wire.Encode(good)[:20], wire.RefusedRecord},
		"driver of another kind":       {wire.Encode(wire.Attach{Driver: cu.CUDA + cu.Soft - kind, Access: cu.ReadOnly, Name: "data"}), wire.RefusedKind},
		"no driver":                    {wire.Encode(wire.Attach{Driver: 0, Access: cu.ReadOnly, Name: "data"}), wire.RefusedKind},
		"access 0":                     {wire.Encode(wire.Attach{Driver: kind, Access: cu.NoAccess, Name: "data"}), wire.RefusedRecord},
		"fault 31: an acknowledgement": {wire.Encode(wire.Mapped{Generation: 1}), wire.RefusedRecord},
		"fault 31: a verdict":          {wire.Encode(wire.Verdict{OK: true, Text: ""}), wire.RefusedRecord},
		"progress":                     {wire.Encode(wire.Progress{Done: 1, Total: 2}), wire.RefusedRecord},
		"an offer without its files":   {wire.Encode(wire.Offer{Name: "x", Access: cu.ReadOnly, FDs: 1}), wire.RefusedRecord},
		"a refusal":                    {wire.Encode(wire.Refuse{Code: wire.RefusedBusy, Text: "no"}), 0},
		"unknown name":                 {wire.Encode(wire.Attach{Driver: kind, Access: cu.ReadOnly, Name: "other"}), wire.RefusedName},
		"64 KiB":                       {append(wire.Encode(good), make([]byte, sock.MaxRecord-100)...), wire.RefusedRecord},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dialed(t, srv)
			require.NoError(t, conn.Send(soon(t), c.record))
			if c.code == 0 {
				requireAnswer(t, conn, ErrRefused, name)
			} else {
				requireRefusal(t, conn, c.code, name)
			}
			require.NoError(t, conn.Close())
			n++
			require.Error(t, s.await(t, PeerRefused, n).Err)
		})
	}
	require.NoError(t, bystander.Progress(soon(t), 1, 2))
	require.NoError(t, bystander.Err())
	require.Len(t, s.of(Ended), 0)
	requireServed(t, srv, ctx)
}

// requireAnswer is the answer to a record that is that fault: after a refusal none.
func requireAnswer(t *testing.T, conn *sock.Conn, fault error, why string) {
	t.Helper()
	switch {
	case fault == ErrRefused:
		require.ErrorIs(t, errOf(conn.Receive(soon(t))), sock.ErrPeerLost, why)
	case errors.Is(fault, wire.ErrVersion):
		requireRefusal(t, conn, wire.RefusedVersion, why)
	default:
		requireRefusal(t, conn, wire.RefusedRecord, why)
	}
}

func requireRefusal(t *testing.T, conn *sock.Conn, code wire.RefusalCode, why string) {
	t.Helper()
	rec, err := conn.Receive(soon(t))
	require.NoError(t, err, why)
	m, err := wire.Decode(rec.Data)
	require.NoError(t, err, why)
	no, ok := m.(wire.Refuse)
	require.True(t, ok, "%s: answered with %#v", why, m)
	require.Equal(t, code, no.Code, "%s: %s", why, no.Text)
	require.NotEmpty(t, no.Text)
	require.Empty(t, rec.Files)
}

// requireNamed checks that the record refuses what it names.
func requireNamed(t *testing.T, record []byte, name string) {
	t.Helper()
	no := ok(wire.Decode(record))(t).(wire.Refuse)
	require.Equal(t, wire.RefusedUnsupported, no.Code)
	require.Contains(t, no.Text, name)
}

// TestFault21and23_RecordsBeyondTheLimits: a peer that sends more than either side ever takes, past what
// Send allows, or descriptors where none belong, costs its own connection. None of them gets in.
func TestFault21and23_RecordsBeyondTheLimits(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	bystander := attached(t, srv, "", dev)
	null := ok(os.Open(os.DevNull))(t)
	good := wire.Encode(wants(dev))
	n := 0
	for name, c := range map[string]struct {
		record []byte
		fds    int
		want   error
	}{
		"fault 20: one":                         {good, 1, sock.ErrTooManyFDs},
		"fault 21: as many as a record may":     {good, sock.MaxFDs, sock.ErrTooManyFDs},
		"fault 21: as many as the kernel sends": {good, 253, sock.ErrTooManyFDs},
		"fault 24: an empty record with one":    {nil, 1, sock.ErrTooManyFDs},
		"fault 23: a byte too long a record":    {make([]byte, wire.MaxRecord+1), 0, sock.ErrTruncated},
		"fault 23: too long a record":           {make([]byte, 2*sock.MaxRecord), 0, sock.ErrTruncated},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dialed(t, srv)
			if sendRaw(t, conn, c.record, null, c.fds) {
				requireRefusal(t, conn, wire.RefusedRecord, name)
			} else {
				c.want = sock.ErrPeerLost
			}
			require.NoError(t, conn.Close())
			n++
			require.ErrorIs(t, s.await(t, PeerRefused, n).Err, c.want)
		})
	}
	require.NoError(t, null.Close())
	require.NoError(t, bystander.Err())
	require.ErrorIs(t, errOf(Attach(soon(t), impostor(t, tell(t, lie{make([]byte, wire.MaxRecord+1), nil})), "data", dev, nil)), sock.ErrTruncated)
	requireServed(t, srv, ctx)
}

// TestFault31_BadAnswers: what no consumer may say to an offer, or while it waits for one, ends its
// lease or its wait, and harms no other consumer.
func TestFault31_BadAnswers(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	null := ok(os.Open(os.DevNull))(t)
	t.Cleanup(func() { require.NoError(t, null.Close()) })
	for when, comes := range map[string]func(*Server) (*sock.Conn, *served){
		"there is an offer": func(srv *Server) (*sock.Conn, *served) {
			s := put(t, srv, buf)
			return asked(t, srv, wants(dev)), s
		},
		"after it has waited for one": func(srv *Server) (*sock.Conn, *served) {
			expect(srv, "data")
			conn := early(t, srv, wants(dev))
			return conn, put(t, srv, buf)
		},
		"while it waits for one": func(srv *Server) (*sock.Conn, *served) {
			expect(srv, "data")
			return early(t, srv, wants(dev)), nil
		},
	} {
		for name, c := range badAnswers(dev.Driver().Kind()) {
			t.Run(when+", "+name, func(t *testing.T) {
				srv := listen(t)
				conn, s := comes(srv)
				if s != nil {
					require.IsType(t, wire.Offer{}, heard(t, conn))
				}
				if sendRaw(t, conn, c.record, null, c.fds) {
					requireAnswer(t, conn, c.want, name)
				} else {
					c.want = sock.ErrPeerLost
				}
				require.NoError(t, conn.Close())
				if s == nil {
					require.Eventually(t, func() bool { return len(waiting(srv)) == 0 }, 10*time.Second, time.Millisecond)
					return
				}
				require.ErrorIs(t, s.await(t, Ended, 1).Err, c.want)
				requireServed(t, srv, ctx)
				s.stop(t)
			})
		}
	}
}

type answer struct {
	record []byte
	fds    int
	want   error
}

// badAnswers are what no consumer may say to an offer.
func badAnswers(kind cu.Kind) map[string]answer {
	return map[string]answer{
		"attaches again":                         {wire.Encode(wire.Attach{Driver: kind, Access: cu.ReadOnly, Name: "data"}), 0, serve.ErrUnexpected},
		"offers":                                 {wire.Encode(wire.Offer{Name: "x", Access: cu.ReadOnly}), 0, serve.ErrUnexpected},
		"revokes":                                {wire.Encode(wire.Revoke{Text: ""}), 0, serve.ErrUnexpected},
		"refuses":                                {wire.Encode(wire.Refuse{Code: wire.RefusedBusy, Text: "no"}), 0, ErrRefused},
		"fault 31: good without mapping":         {wire.Encode(wire.Verdict{OK: true, Text: ""}), 0, serve.ErrUnexpected},
		"fault 31: maps another generation":      {wire.Encode(wire.Mapped{Generation: 999}), 0, serve.ErrUnexpected},
		"fault 29: random":                       {noise(100, 1), 0, wire.ErrMalformed},
		"fault 27: other version":                {flaw(wire.Mapped{Generation: 1}, 4, 9), 0, wire.ErrVersion},
		"fault 20: a descriptor with progress":   {wire.Encode(wire.Progress{Done: 1, Total: 2}), 1, sock.ErrTooManyFDs},
		"fault 20: descriptors with its verdict": {wire.Encode(wire.Verdict{OK: true, Text: ""}), 3, sock.ErrTooManyFDs},
		"fault 24: an empty record with one":     {nil, 1, sock.ErrTooManyFDs},
	}
}

// FAULTS 59: a limit on connections, which must be told, not just felt. A consumer that waits for
// an expected offer has a place, too.
func TestFault59_AttachIsRefusedForWantOfAPlace(t *testing.T) {
	dev, ctx, srv := listening(t, ListenOptions{MaxConnections: 2})
	expect(srv, "more")
	want := wants(dev)
	want.Name = "more"
	early(t, srv, want)
	put(t, srv, newBuffer(t, ctx, 1))
	held := attached(t, srv, "data", dev)
	for range 50 {
		var no *serve.RefusalError
		require.ErrorAs(t, errOf(Attach(soon(t), srv.Path(), "data", dev, nil)), &no)
		require.Equal(t, wire.RefusedBusy, no.Code)
	}
	require.Len(t, waiting(srv), 1)
	require.NoError(t, held.Err())
}

// TestFault59_ConnectionsOfOneProcess: one process does not get all the places, is told so, and gets others
// when it gives some back.
func TestFault59_ConnectionsOfOneProcess(t *testing.T) {
	dev, ctx, srv := listening(t, ListenOptions{MaxConnectionsPerPeer: 2})
	s := put(t, srv, newBuffer(t, ctx, 1))
	held := attached(t, srv, "", dev)
	awaitConnections := func(n int) {
		require.Eventually(t, func() bool { return connections(srv) == n }, 10*time.Second, time.Millisecond)
	}
	silent := dialed(t, srv)
	awaitConnections(2)
	var no *serve.RefusalError
	require.ErrorAs(t, errOf(Attach(soon(t), srv.Path(), "", dev, nil)), &no)
	require.Equal(t, wire.RefusedBusy, no.Code)
	require.Equal(t, "the producer has 2 connections of this process, and takes no more of it", no.Text)
	require.ErrorContains(t, s.await(t, PeerRefused, 1).Err, "2 connections of this process")
	require.NoError(t, silent.Close())
	awaitConnections(1)
	requireServed(t, srv, ctx)
	require.NoError(t, held.Err())
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
	const rate = 20
	dev, ctx, srv := listening(t, ListenOptions{peer: withRate(rate)})
	s := put(t, srv, newBuffer(t, ctx, 1))
	bystander := attached(t, srv, "", dev)
	conn := asked(t, srv, wants(dev))
	requireOffered(t, conn, false)
	flood(t, conn, rate-2) // and what it has said so far
	require.NoError(t, bystander.Progress(soon(t), 1, 2))
	s.await(t, Progress, rate-1)
	require.Empty(t, s.of(Ended))
	flood(t, conn, 10*rate)
	err := s.await(t, Ended, 1).Err
	require.ErrorIs(t, err, serve.ErrRate)
	require.ErrorContains(t, err, "more than 20")
	requireRefusal(t, conn, wire.RefusedRate, "a flood")
	require.NoError(t, conn.Close())
	require.NoError(t, bystander.Err())
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
	for i, size := range []uint64{2*g + 1, 0} {
		att := ok(Attach(soon(t), srv.Path(), "", dev, &AttachOptions{MaxSize: size}))(t)
		require.NoError(t, att.Close())
		require.NoError(t, s.await(t, Ended, i+1).Err)
	}
	imports, n := spy.count("cuMemImportFromShareableHandle"), 2
	_, err := Attach(soon(t), srv.Path(), "", dev, &AttachOptions{MaxSize: 2 * g})
	require.ErrorIs(t, err, ErrTooLarge)
	told := s.await(t, Ended, n+1).Err
	require.ErrorIs(t, told, ErrVerdict)
	require.ErrorContains(t, told, " bytes at most", "the producer is told")
	require.Equal(t, imports, spy.count("cuMemImportFromShareableHandle"))

	tr := truthOf(t, ctx) // what a producer may lie about is bounded, too
	for chunk, most := range map[uint64]uint64{1 << 62: 1 << 40, 4 << 20: 2 << 20, 1 << 63: 1<<64 - 1} {
		l := tr.say(func(o *wire.Offer) { o.Memory.Size, o.Memory.ChunkSize = 1, chunk }, tr.files...)
		require.ErrorIs(t, errOf(Attach(soon(t), impostor(t, tell(t, l)), "data", dev, &AttachOptions{MaxSize: most})), ErrTooLarge, "%d", chunk)
	}
}

// A consumer that has not said that it takes legacy memory is told so by code, and is sent no
// handle, whatever else it says that it takes.
func TestLegacyHandleIsForWhoTakesIt(t *testing.T) {
	dev, ctx, srv := listening(t)
	m := newLegacy(t, ctx, 1)
	serveLegacy(t, srv, m)
	handle := m.handle.Handle
	want := wants(dev)
	for capabilities, takes := range map[wire.Capabilities]bool{
		0: false, ^wire.TakesLegacy: false, wire.TakesLegacy: true, ^wire.Capabilities(0): true,
	} {
		want.Capabilities = capabilities
		conn := asked(t, srv, want)
		rec := ok(conn.Receive(soon(t)))(t)
		require.Equal(t, takes, bytes.Contains(rec.Data, handle[:]))
		if !takes {
			requireNamed(t, rec.Data, "legacy handle")
			require.ErrorIs(t, errOf(conn.Receive(soon(t))), sock.ErrPeerLost, "nothing else comes")
		}
		require.NoError(t, conn.Close())
	}
}
