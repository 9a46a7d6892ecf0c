package share

import (
	"testing"
	"time"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/sock"
)

// FAULTS 31: whoever says twice that it has mapped the memory is not believed.
func TestFault31_MappedIsSaidOnce(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	s := put(t, srv, buf)
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Attach{Driver: dev.Driver().Kind(), Access: ReadOnly, Name: ""})))
	rec := ok(conn.Receive(soon(t)))(t)
	require.NoError(t, rec.Close())
	require.NoError(t, conn.Send(soon(t), wire.Encode(isMapped(buf))))
	require.NoError(t, conn.Send(soon(t), wire.Encode(isMapped(buf))))
	requireRefusal(t, conn, RefusedRecord, "mapped twice")
	require.NoError(t, conn.Close())
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrProtocol)
	require.Len(t, s.of(Mapped), 1)
}

// Invariant 2: a producer that takes nothing more and keeps the connection open
// is as good as gone. Nobody waits for it without end.
func TestProducerThatOnlySends(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	good := tr.say(nil, tr.files...)
	deaf, over := make(chan struct{}), make(chan struct{})
	att, err := Attach(soon(t), impostor(t, func(conn *sock.Conn) {
		_ = conn.Send(soon(t), good.record, good.files...)
		if rec, err := conn.Receive(soon(t)); err == nil { // mapped
			_ = rec.Close()
		}
		f, err := conn.File()
		if err == nil {
			err = unix.Shutdown(int(f.Fd()), unix.SHUT_RD)
			_ = f.Close()
		}
		if err != nil {
			t.Error(err)
		}
		close(deaf)
		<-over
	}), "data", dev, attachOption(func(o *attachOptions) { o.Goodbye = brief }))
	require.NoError(t, err)
	<-deaf
	require.ErrorIs(t, att.Progress(soon(t), 1, 2), sock.ErrPeerLost)
	require.ErrorIs(t, awaitDone(t, att), sock.ErrPeerLost)
	require.ErrorIs(t, att.Report(soon(t), nil), sock.ErrPeerLost)
	close(over)
	requireNoise(t, ctx, att.Buffer(), 1)
	require.NoError(t, att.Close())
}

// A consumer that waits for an expected offer and goes, or speaks, gives its
// place up at once.
func TestWaitingConsumerThatGoesGivesItsPlaceUp(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t, WithConnections(2), WithTimeout(10*time.Second), goodbyes(brief)) // one does not go when it is told to
	srv.Expect("data")
	srv.Working("data", 1, 2)
	for range 20 {
		conn := dialed(t, srv)
		require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Attach{Driver: dev.Driver().Kind(), Access: ReadOnly, Name: "data"})))
		_, err := conn.Receive(soon(t)) // progress: it has its place, and waits
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.Eventually(t, func() bool { return connections(srv) == 0 }, 5*time.Second, time.Millisecond)
	}
	chatty := dialed(t, srv)
	require.NoError(t, chatty.Send(soon(t), wire.Encode(wire.Attach{Driver: dev.Driver().Kind(), Access: ReadOnly, Name: "data"})))
	require.NoError(t, chatty.Send(soon(t), wire.Encode(wire.Mapped{Generation: 1})))
	_ = chatty.WaitClose(soon(t))
	require.NoError(t, chatty.Close())
	require.Eventually(t, func() bool { return connections(srv) == 0 }, 5*time.Second, time.Millisecond)
	put(t, srv, newBuffer(t, ctx, 1))
	requireServed(t, srv, ctx)
}

// Close returns when the offers have let go of everything.
func TestServerCloseWaitsForItsOffers(t *testing.T) {
	_, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	_, files, err := buf.Export() // from now on the buffer remembers one
	require.NoError(t, err)
	require.NoError(t, sock.CloseFiles(files))
	before := cutest.Descriptors()
	for range 50 {
		srv := listen(t)
		put(t, srv, buf)
		require.NoError(t, srv.Close())
		require.Equal(t, before, cutest.Descriptors())
	}
}
