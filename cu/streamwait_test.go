package cu_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// Work queued after a wait runs after the other process's record.
func TestIPCEventWithADeadline(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s, peer := newStream(t, ctx), newPeer(t, 0)
	e := openedEvent(t, ctx, peer.event(t))
	peer.ask(t, "hold")
	peer.ask(t, "record", 0)
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond) // there is no telling but to wait
	defer cancel()
	require.ErrorIs(t, e.Synchronize(short), context.DeadlineExceeded)
	peer.ask(t, "release")
	require.NoError(t, e.Synchronize(soon(t)))
	require.NoError(t, e.Synchronize(context.Background()))
	require.NoError(t, e.Record(s))
	require.Equal(t, "happened", peer.ask(t, "wait", 0))
	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	require.ErrorIs(t, e.Record(s), cu.ErrClosed)
	require.ErrorIs(t, e.Synchronize(soon(t)), cu.ErrClosed)
	peer.end(t)
}

// FAULTS 18: a wait for the record of a process which was killed ends with its
// deadline, no stream waits, and all can be closed.
func TestFault18_IPCEventOfAKilledPeer(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s, peer := newStream(t, ctx), newPeer(t, 0)
	e := openedEvent(t, ctx, peer.event(t))
	peer.ask(t, "hold")
	peer.ask(t, "record", 0)
	limited, cancel := context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	go func() { result <- e.Synchronize(limited) }()
	peer.kill()
	gone := errors.New("the peer is gone")
	cancel(gone)
	err := <-result
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, gone)
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, ctx.Synchronize(soon(t)))
	require.NoError(t, e.Close())
}

// A wait that cannot be queued, or marked, leaves nothing behind.
func TestGuardErrors(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s := ok(ctx.NewStream())(t)
	bad := errors.New("no")
	freed := 0
	free := func() error { freed++; return nil }
	met := func() error { return nil }
	require.ErrorIs(t, errOf(s.Guard(soon(t), func() error { return bad }, met, free)), bad)
	require.Zero(t, freed)
	require.ErrorIs(t, errOf(s.Guard(soon(t), s.Close, met, free)), cu.ErrClosed)
	require.Equal(t, 1, freed)
	require.ErrorIs(t, errOf((*cu.Stream)(nil).Guard(soon(t), free, met, free)), cu.ErrClosed)
}

// A graph waits for no other process: a stream that is being captured is refused, and
// the capture goes on. Other streams are as before.
func TestCapturedStreamIsNotGuarded(t *testing.T) {
	d := newDrawing(t, cutest.Device(t))
	never := func() error { t.Error("called"); return nil }
	require.NoError(t, d.a.NotCaptured())
	g, err := d.a.Capture(func() error {
		require.ErrorIs(t, d.a.NotCaptured(), cu.ErrStreamCaptureUnsupported)
		require.NoError(t, d.b.NotCaptured())
		_, err := d.a.Guard(soon(t), never, never, never)
		require.ErrorIs(t, err, cu.ErrStreamCaptureUnsupported)
		return d.fill(d.a, 0, 7)
	})
	require.NoError(t, err)
	require.NoError(t, d.a.NotCaptured())
	exec := ok(g.Instantiate(0))(t)
	require.NoError(t, exec.Launch(d.a))
	require.Equal(t, []byte{7}, d.read(t, 1))
	require.NoError(t, errors.Join(exec.Close(), g.Close()))
}

// A stream whose freeing is undone, by a peer that was only slow, is freed again;
// and who went on by another's doing is told why.
func TestGuardFreesAgain(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s, helper := newStream(t, ctx), newStream(t, ctx)
	word := ok(ctx.Alloc(4))(t)
	require.NoError(t, cu.Fill(ctx, word.Ptr(), uint32(0), 1))
	require.NoError(t, ctx.Synchronize(soon(t)))
	wait := func() error { return s.WaitValue32(word.Ptr(), 1, cu.WaitGEQ) }
	bad := errors.New("not the peer's doing")
	met := func() error { return bad }
	freed := 0
	free := func() error {
		if freed++; freed == 1 {
			return nil // as if it had been undone
		}
		return helper.WriteValue32(word.Ptr(), 1, cu.WriteDefault)
	}
	limited, cancel := context.WithCancel(t.Context())
	w := ok(s.Guard(limited, wait, met, free))(t)
	cancel()
	err := w.Result()
	require.ErrorIs(t, err, cu.ErrGivenUp)
	require.NotContains(t, err.Error(), "waits still")
	require.GreaterOrEqual(t, freed, 2) // oftener, where the driver is slow to see it
	require.ErrorIs(t, ok(s.Guard(soon(t), wait, met, free))(t).Result(), bad)
	require.NoError(t, errors.Join(s.Synchronize(soon(t)), helper.Synchronize(soon(t)), word.Close()))
}
