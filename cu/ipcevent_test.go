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

// openedEvent is an event of another process, closed when t ends.
func openedEvent(t testing.TB, ctx *cu.Context, h cu.IPCEventHandle) *cu.Event {
	t.Helper()
	return untilEnd(t, ok(ctx.OpenIPCEvent(h))(t))
}

// A record of one process is asked for, waited for and awaited by a stream of
// another.
func TestIPCEventOrdersProcesses(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s, peer := newStream(t, ctx), newPeer(t, 0)
	e := openedEvent(t, ctx, peer.event(t))
	require.True(t, ok(e.Query())(t), "never recorded")

	peer.ask(t, "hold")
	peer.ask(t, "record", 0)
	require.False(t, ok(e.Query())(t))
	require.NoError(t, s.WaitEvent(e))
	require.False(t, ok(s.Query())(t))
	short, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, e.Synchronize(short), context.Canceled)
	peer.ask(t, "release")
	require.NoError(t, e.Synchronize(soon(t)))
	require.NoError(t, e.Synchronize(context.Background()))
	require.NoError(t, s.Synchronize(soon(t)))

	require.NoError(t, e.Record(s)) // and the other way round
	require.Equal(t, "happened", peer.ask(t, "wait", 0))
	require.ErrorIs(t, errOf(e.Elapsed(e)), cu.ErrInvalidHandle)
	require.NoError(t, e.Close())
	peer.end(t)
}

// FAULTS 17: the driver opens an event that its owner has closed, or whose owner
// was killed. Nobody hangs by it: a wait that has a deadline ends with it.
func TestFault17_EventIsGone(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	peer := newPeer(t, 0)
	dropped, orphan := peer.event(t), peer.event(t)
	peer.ask(t, "drop", 0)
	gone := func(h cu.IPCEventHandle) {
		t.Helper()
		e := ok(ctx.OpenIPCEvent(h))(t)
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := e.Synchronize(short); err != nil { // what it finds there is left open
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		require.NoError(t, e.Close())
	}
	gone(dropped)
	peer.ask(t, "hold")
	peer.ask(t, "record", 1)
	peer.kill()
	gone(orphan)
}

// A process that has an event open goes on when its owner is killed.
func TestIPCEventOutlivesItsOwner(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	s, peer := newStream(t, ctx), newPeer(t, 0)
	e := openedEvent(t, ctx, peer.event(t))
	peer.ask(t, "record", 0)
	peer.ask(t, "wait", 0)
	peer.kill()
	require.NoError(t, e.Synchronize(soon(t)))
	require.NoError(t, s.WaitEvent(e))
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, e.Close())
}

func TestIPCEventHandleErrors(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	plain := ok(ctx.NewEvent(cu.EventDisableTiming))(t)
	_, err := plain.IPCHandle()
	require.Error(t, err)
	require.ErrorContains(t, err, "EventInterprocess")
	shared := ok(ctx.NewEvent(cu.EventInterprocess | cu.EventDisableTiming))(t)
	h := ok(shared.IPCHandle())(t)
	_, err = ctx.OpenIPCEvent(h)
	require.Error(t, err)
	require.ErrorContains(t, err, "this very process")
	require.NoError(t, errors.Join(plain.Close(), shared.Close()))
	require.ErrorIs(t, errOf(shared.IPCHandle()), cu.ErrClosed)
	require.ErrorIs(t, errOf((*cu.Event)(nil).IPCHandle()), cu.ErrClosed)
}

// FAULTS 46, D18 of docs/driver-facts.md: between containers memory is shared; events are where both have
// /dev/shm in common, and elsewhere the error says what to use instead.
func TestFault46_IPCBetweenNamespaces(t *testing.T) {
	t.Run("with a /dev/shm each", func(t *testing.T) {
		ctx, peer := acrossNamespaces(t, true)
		_, err := ctx.OpenIPCEvent(peer.event(t))
		require.ErrorIs(t, err, cu.ErrMapFailed)
		require.ErrorContains(t, err, "WaitValue64")
	})
	t.Run("with one in common", func(t *testing.T) {
		ctx, peer := acrossNamespaces(t, false)
		e := openedEvent(t, ctx, peer.event(t))
		peer.ask(t, "record", 0)
		require.NoError(t, e.Synchronize(soon(t)))
	})
	// From here on libcuda has a file of process 1 of that user, and looks into that one.
	t.Run("with a /dev/shm each, after that", func(t *testing.T) {
		ctx, peer := acrossNamespaces(t, true)
		e, err := ctx.OpenIPCEvent(peer.event(t))
		if cutest.Kind() == cu.Soft {
			require.ErrorIs(t, err, cu.ErrMapFailed)
			return
		}
		require.NoError(t, err)
		peer.ask(t, "hold")
		peer.ask(t, "record", 0)
		require.True(t, ok(e.Query())(t), "of another event")
		peer.ask(t, "release")
		require.NoError(t, e.Close())
	})
}

// acrossNamespaces is a peer in namespaces of its own, of which memory was opened.
func acrossNamespaces(t *testing.T, shm bool) (*cu.Context, *ipcPeer) {
	t.Helper()
	ctx := cutest.Context(t, cutest.Device(t))
	peer := isolatedPeer(t, shm)
	m := opened(t, ctx, peer.memory(t, ipcSize, 7))
	require.EqualValues(t, 7, byteOf(t, ctx, m.Ptr()))
	require.NoError(t, m.Close())
	t.Cleanup(func() {
		if !t.Failed() {
			peer.end(t)
		}
	})
	return ctx, peer
}
