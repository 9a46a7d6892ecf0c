package share

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// Consumers are told in a record that older ones ignore, however far they have got. None of them
// waits for data, because a prepared offer cannot be replaced.
func TestConsumersHearThatTheyAreSuperseded(t *testing.T) {
	dev, ctx, srv := listening(t, goodbyes(brief))
	buf, next := newBuffer(t, ctx, 1), newBuffer(t, ctx, 2)
	old := put(t, srv, buf)
	sent, mapped := asked(t, srv, wants(dev)), asked(t, srv, wants(dev))
	for _, conn := range []*sock.Conn{sent, mapped} {
		require.IsType(t, wire.Offer{}, heard(t, conn))
	}
	require.NoError(t, mapped.Send(soon(t), wire.Encode(isMapped(buf))))
	old.await(t, Mapped, 1)
	replace(t, srv, next)
	replace(t, srv, buf) // of which they are not told: they know that there is something else
	want := wire.Superseded{Generation: next.Describe().Generation}
	for _, conn := range []*sock.Conn{sent, mapped} {
		require.Equal(t, want, heard(t, conn))
	}
	old.goesOn(t)
	require.NoError(t, sent.Send(soon(t), wire.Encode(isMapped(buf))))
	old.await(t, Mapped, 2)
	require.NoError(t, sent.Close())
	require.NoError(t, mapped.Close())
	require.NoError(t, old.end(t))
}

// A consumer that does not read is told when it does, and waited for no longer than its lease.
func TestSupersededConsumerThatDoesNotRead(t *testing.T) {
	dev, ctx := leavesNothing(t)
	for _, reads := range []bool{true, false} {
		srv := listen(t, goodbyes(brief))
		old := put(t, srv, newBuffer(t, ctx, 1))
		conn := asked(t, srv, wants(dev))
		old.await(t, Sent, 1)
		n := 0
		for l := srv.Leases("data")[0]; l.Notify(briefly(t), nil) == nil; n++ {
		}
		replace(t, srv, newBuffer(t, ctx, 2))
		require.EqualValues(t, 2, attached(t, srv, "data", dev).Size())
		if reads {
			require.IsType(t, wire.Offer{}, heard(t, conn))
			for range n {
				require.IsType(t, wire.Notice{}, heard(t, conn))
			}
			require.IsType(t, wire.Superseded{}, heard(t, conn))
			require.NoError(t, conn.Close())
		} else {
			old.cancel()
		}
		require.NoError(t, old.end(t))
		require.NoError(t, srv.Close())
	}
}

// Consumers take it whenever it comes, and however often. It changes nothing else.
func TestSupersededAtAnyTime(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	says := lie{record: wire.Encode(wire.Superseded{Generation: 1})}
	all := tr.say(nil, tr.files...)
	first, second := tr.say(func(o *wire.Offer) { o.FDs = 2 }, tr.files[:2]...), tr.say(func(o *wire.Offer) { o.First, o.FDs = 2, 1 }, tr.files[2])
	pending := tr.say(func(o *wire.Offer) { o.Pending = true }, tr.files...)
	publish := lie{record: wire.Encode(wire.Publish{Generation: tr.Memory.Generation})}
	for name, lies := range map[string][]lie{
		"never":                      {all},
		"before the offer":           {says, all},
		"between its records":        {first, says, says, second},
		"before the data":            {pending, says, publish},
		"behind the offer":           {all, says},
		"behind the data, and again": {pending, publish, says, says},
	} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{})
			att, err := Attach(soon(t), impostor(t, func(conn *sock.Conn) {
				tell(t, lies...)(conn)
				<-over
				_ = conn.Send(soon(t), wire.Encode(wire.Revoke{}))
				_, _ = conn.Receive(soon(t)) // its end
			}), "data", dev)
			require.NoError(t, err)
			if name == "never" {
				require.NoError(t, att.Err())
				require.False(t, isSuperseded(att))
			} else {
				awaitSuperseded(t, att)
				require.NoError(t, att.Err())
			}
			close(over)
			require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
			require.NoError(t, att.Close())
		})
	}
}

// A consumer has nothing of the kind to say.
func TestConsumerThatSaysSuperseded(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	for n, begin := range [][]wire.Message{nil, {wants(dev)}} {
		conn := dialed(t, srv)
		for _, m := range append(begin, wire.Superseded{Generation: 1}) {
			require.NoError(t, conn.Send(soon(t), wire.Encode(m)))
		}
		if n == 1 {
			require.IsType(t, wire.Offer{}, heard(t, conn))
		}
		require.Equal(t, RefusedRecord, heard(t, conn).(wire.Refuse).Code)
		require.NoError(t, conn.Close())
	}
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrProtocol)
}
