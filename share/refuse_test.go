package share

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
)

// flaw returns the record of m with one part of its header changed.
func flaw(m wire.Message, offset int, b ...byte) []byte {
	r := wire.Encode(m)
	copy(r[offset:], b)
	return r
}

// firstRecords are what a lying or broken consumer may begin with, and the
// code of the answer.
func firstRecords(kind cu.Kind) map[string]struct {
	record []byte
	code   RefusalCode
} {
	good := wire.Attach{Driver: kind, Access: ReadOnly, Name: "data"}
	type c = struct {
		record []byte
		code   RefusalCode
	}
	return map[string]c{
		"fault 27: wrong magic":        {flaw(good, 0, []byte("GPFE")...), RefusedRecord},
		"fault 27: older version":      {flaw(good, 4, 0, 0), RefusedVersion},
		"fault 27: newer version":      {flaw(good, 4, 2, 0), RefusedVersion},
		"fault 27: unknown type":       {flaw(good, 6, 99, 0), RefusedUnsupported},
		"fault 27: unknown flags":      {flaw(good, 8, 0, 0, 1, 0), RefusedUnsupported},
		"fault 28: length 0":           {flaw(good, 12, 0, 0, 0, 0), RefusedRecord},
		"fault 28: length 2^31":        {flaw(good, 12, 0, 0, 0, 0x80), RefusedRecord},
		"fault 28: length 2^32-1":      {flaw(good, 12, 0xff, 0xff, 0xff, 0xff), RefusedRecord},
		"fault 29: random bytes":       {noise(300, 5), RefusedRecord},
		"fault 32: one byte at a time": {[]byte{'G'}, RefusedRecord},
		"fault 30: cut off":            {wire.Encode(good)[:20], RefusedRecord},
		"driver of another kind":       {wire.Encode(wire.Attach{Driver: cu.CUDA + cu.Soft - kind, Access: ReadOnly, Name: "data"}), RefusedKind},
		"no driver":                    {wire.Encode(wire.Attach{Driver: 0, Access: ReadOnly, Name: "data"}), RefusedKind},
		"access 0":                     {wire.Encode(wire.Attach{Driver: kind, Access: cu.NoAccess, Name: "data"}), RefusedRecord},
		"fault 31: an acknowledgement": {wire.Encode(wire.Mapped{Generation: 1}), RefusedRecord},
		"fault 31: a verdict":          {wire.Encode(wire.Verdict{OK: true, Text: ""}), RefusedRecord},
		"progress":                     {wire.Encode(wire.Progress{Done: 1, Total: 2}), RefusedRecord},
		"an offer without its files":   {wire.Encode(wire.Offer{Name: "x", Access: ReadOnly, FDs: 1}), RefusedRecord},
		"an offer":                     {wire.Encode(wire.Offer{Name: "x", Access: ReadOnly}), RefusedRecord},
		"a revocation":                 {wire.Encode(wire.Revoke{Text: "x"}), RefusedRecord},
		"unknown name":                 {wire.Encode(wire.Attach{Driver: kind, Access: ReadOnly, Name: "other"}), RefusedName},
		"64 KiB":                       {append(wire.Encode(good), make([]byte, sock.MaxRecord-100)...), RefusedRecord},
	}
}

// Invariant 2: each costs its own connection, is
// answered, and leaves another consumer alone.
func TestBadFirstRecordsCostTheirOwnConnection(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	bystander := attached(t, srv, "", dev)
	n := 0
	for name, c := range firstRecords(dev.Driver().Kind()) {
		t.Run(name, func(t *testing.T) {
			conn := dialed(t, srv)
			require.NoError(t, conn.Send(soon(t), c.record))
			requireRefusal(t, conn, c.code, name)
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
	if fault == ErrRefused {
		require.ErrorIs(t, errOf(conn.Receive(soon(t))), sock.ErrPeerLost, why)
		return
	}
	requireRefusal(t, conn, codeOf(fault), why)
}

func requireRefusal(t *testing.T, conn *sock.Conn, code RefusalCode, why string) {
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

// Descriptors where none belong, and records that no honest
// peer sends, past what Send allows.
func TestDescriptorsThatNobodyAskedForAreClosed(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	bystander := attached(t, srv, "", dev)
	null := ok(os.Open(os.DevNull))(t)
	good := wire.Encode(wire.Attach{Driver: dev.Driver().Kind(), Access: ReadOnly, Name: "data"})
	n := 0
	for name, c := range map[string]struct {
		record []byte
		fds    int
	}{
		"fault 20: one":                         {good, 1},
		"fault 20: two":                         {good, 2},
		"fault 21: as many as a record may":     {good, sock.MaxFDs},
		"fault 21: more":                        {good, sock.MaxFDs + 1},
		"fault 21: as many as the kernel sends": {good, 253},
		"fault 24: an empty record with one":    {nil, 1},
		"fault 23: too long a record":           {make([]byte, sock.MaxRecord+1), 3},
		"fault 23: too long a record alone":     {make([]byte, 2*sock.MaxRecord), 0},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dialed(t, srv)
			if sendRaw(t, conn, c.record, null, c.fds) {
				requireRefusal(t, conn, RefusedRecord, name)
			}
			require.NoError(t, conn.Close())
			n++
			require.Error(t, s.await(t, PeerRefused, n).Err)
		})
	}
	require.NoError(t, null.Close())
	require.NoError(t, bystander.Err())
	requireServed(t, srv, ctx)
}

// A peer that connects and is silent, or goes at once, holds nobody up.
func TestSilentPeerIsSentAway(t *testing.T) {
	_, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	srv := listen(t, WithTimeout(brief))
	s := put(t, srv, buf)
	silent := dialed(t, srv)
	require.ErrorIs(t, s.await(t, PeerRefused, 1).Err, ErrTimeout)
	requireRefusal(t, silent, RefusedTimeout, "silence")
	require.NoError(t, silent.Close())

	srv = listen(t)
	s = put(t, srv, buf)
	dialed(t, srv) // silent for longer than this takes
	gone := dialed(t, srv)
	require.NoError(t, gone.Close())
	require.ErrorIs(t, s.await(t, PeerRefused, 1).Err, sock.ErrPeerLost)
	requireServed(t, srv, ctx)
}

// A refusal ends the conversation, also as the first word; nobody answers it.
func TestRefusalIsNotAnswered(t *testing.T) {
	_, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Refuse{Code: RefusedBusy, Text: "no"})))
	requireAnswer(t, conn, ErrRefused, "the first record")
	require.NoError(t, conn.Close())
	require.ErrorIs(t, s.await(t, PeerRefused, 1).Err, ErrRefused)
	requireServed(t, srv, ctx)
}

// A peer that says nothing until the producer ends is told so, and not that it waited for an offer.
func TestSilentPeerOfAProducerThatEnds(t *testing.T) {
	_, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	silent := dialed(t, srv)
	require.Eventually(t, func() bool { return connections(srv) == 1 }, 10*time.Second, time.Millisecond)
	closed := make(chan error, 1)
	go func() { closed <- srv.Close() }()
	no := heard(t, silent).(wire.Refuse)
	require.Equal(t, RefusedName, no.Code)
	require.Contains(t, no.Text, "you had not said what you want")
	require.NoError(t, silent.Close())
	require.NoError(t, <-closed)
	require.ErrorIs(t, s.end(t), ErrClosed)
}

// A bad record of an attached consumer ends its lease, and harms no other consumer.
func TestBadRecordsOfAnAttachedConsumer(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	bystander := attached(t, srv, "", dev)
	null := ok(os.Open(os.DevNull))(t)
	kind := dev.Driver().Kind()
	n := 0
	for name, c := range badAnswers(kind) {
		t.Run(name, func(t *testing.T) {
			conn := dialed(t, srv)
			require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Attach{Driver: kind, Access: ReadOnly, Name: "data"})))
			rec := ok(conn.Receive(soon(t)))(t)
			require.NoError(t, rec.Close())
			if sendRaw(t, conn, c.record, null, c.fds) {
				requireAnswer(t, conn, c.want, name)
			} else {
				c.want = sock.ErrPeerLost
			}
			require.NoError(t, conn.Close())
			n++
			require.ErrorIs(t, s.await(t, Ended, n).Err, c.want)
		})
	}
	require.NoError(t, null.Close())
	require.NoError(t, bystander.Progress(soon(t), 1, 2))
	require.NoError(t, bystander.Err())
	requireServed(t, srv, ctx)
}

type answer struct {
	record []byte
	fds    int
	want   error
}

// badAnswers are what no consumer may say to an offer.
func badAnswers(kind cu.Kind) map[string]answer {
	return map[string]answer{
		"attaches again":                         {wire.Encode(wire.Attach{Driver: kind, Access: ReadOnly, Name: "data"}), 0, ErrProtocol},
		"offers":                                 {wire.Encode(wire.Offer{Name: "x", Access: ReadOnly}), 0, ErrProtocol},
		"revokes":                                {wire.Encode(wire.Revoke{Text: ""}), 0, ErrProtocol},
		"refuses":                                {wire.Encode(wire.Refuse{Code: RefusedBusy, Text: "no"}), 0, ErrRefused},
		"fault 31: good without mapping":         {wire.Encode(wire.Verdict{OK: true, Text: ""}), 0, ErrProtocol},
		"fault 31: maps another generation":      {wire.Encode(wire.Mapped{Generation: 999}), 0, ErrProtocol},
		"fault 29: random":                       {noise(100, 1), 0, ErrWire},
		"fault 27: other version":                {flaw(wire.Mapped{Generation: 1}, 4, 9), 0, ErrVersion},
		"fault 20: a descriptor with progress":   {wire.Encode(wire.Progress{Done: 1, Total: 2}), 1, sock.ErrTooManyFDs},
		"fault 20: descriptors with its verdict": {wire.Encode(wire.Verdict{OK: true, Text: ""}), 3, sock.ErrTooManyFDs},
		"fault 24: an empty record with one":     {nil, 1, sock.ErrTooManyFDs},
	}
}

func codeOf(err error) RefusalCode {
	if errors.Is(err, ErrVersion) {
		return RefusedVersion
	}
	return RefusedRecord
}
