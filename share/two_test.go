package share

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/vmm"
)

// twoDevices are the contexts of two devices of which the second reaches memory of the first.
// Where there are none, both are of the first.
func twoDevices(t testing.TB) (here, there *cu.Context) {
	t.Helper()
	drv, must := cutest.Driver(t), testenv.Required(testenv.TwoGPUs)
	a := drv.Devices()[0]
	b := a
	if must || len(drv.Devices()) > 1 {
		_, b = cutest.TwoDevices(t, drv)
		can := ok(b.CanAccessPeer(a))(t)
		require.True(t, can || !must, "they do not reach each other")
		if !can {
			b = a
		}
	}
	return cutest.Context(t, a), cutest.Context(t, b)
}

// attachedFrom is what is offered as "data", for the device of there as well.
func attachedFrom(t testing.TB, srv *Server, there *cu.Context, opts ...AttachOptions) *Attachment {
	t.Helper()
	o := first(opts)
	o.PeerAccess = true
	return attached(t, srv, "data", there.Device(), *o)
}

// Streams of two devices take turns by a counter in the memory of one. A signal of the other's
// that is queued still keeps the memory, and one behind a wait that is given up counts for nothing.
//
//fault:rows 79 90
func TestCounterOfTwoDevices(t *testing.T) {
	here, there := twoDevices(t)
	srv, buf := listen(t), newBuffer(t, here, 3*CounterStride)
	require.NoError(t, cu.Fill(here, buf.Ptr(), uint8(0), buf.Size()))
	put(t, srv, buf)
	att := attachedFrom(t, srv, there, AttachOptions{Access: cu.ReadWrite})
	s, peers := newStream(t, here), newStream(t, there)
	mine, theirs, last := newCounter(t, here, buf), counterAt(t, there, att.Buffer(), 1), counterAt(t, there, att.Buffer(), 2)
	minesPeer, theirsPeer, lastsPeer := newCounter(t, there, att.Buffer()), counterAt(t, here, buf, 1), counterAt(t, here, buf, 2)
	for n := range uint64(20) {
		there := ok(theirs.Wait(soon(t), peers, 1+n))(t)
		require.NoError(t, minesPeer.Signal(peers, 1+n))
		require.NoError(t, theirsPeer.Signal(s, 1+n))
		here := ok(mine.Wait(soon(t), s, 1+n))(t)
		require.NoError(t, errors.Join(there.Result(), here.Result()))
	}

	limited, cancel := context.WithCancel(t.Context())
	w := ok(theirs.Wait(limited, peers, 21))(t)
	require.NoError(t, last.Signal(peers, 1))
	require.ErrorIs(t, last.Close(), ErrInUse)
	require.ErrorIs(t, att.Close(), ErrInUse)
	require.NotZero(t, att.Ptr())
	awaited := ok(lastsPeer.Wait(soon(t), s, 1))(t)
	cancel()
	require.ErrorIs(t, w.Result(), cu.ErrGivenUp)
	require.ErrorIs(t, awaited.Result(), cu.ErrGivenUp)
	require.ErrorIs(t, lastsPeer.Await(soon(t), 1), cu.ErrGivenUp)
	for _, c := range []*Counter{mine, theirs, last, minesPeer, theirsPeer, lastsPeer} {
		c.limit = closeLimit
		require.NoError(t, c.Close())
	}
	require.NoError(t, att.Close())
	requireWell(t, here)
	requireWell(t, there)
}

// counterAt is newCounter in another slot.
func counterAt(t testing.TB, ctx *cu.Context, buf *vmm.Buffer, slot int) *Counter {
	t.Helper()
	c := ok(NewCounter(ctx, buf, slot))(t)
	c.limit = brief
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// A graph that was captured on another device reads each version: all are at one address there.
//
//fault:rows 80
func TestFollowFromAnotherDevice(t *testing.T) {
	here, there := twoDevices(t)
	room := ok(vmm.Reserve(there.Device().Driver(), granularity(t, here.Device())))(t)
	defer func() { require.NoError(t, room.Close()) }()
	srv := listen(t)
	expect(srv, "data")
	stream, out := newStream(t, there), newBuffer(t, there, 4)
	buffers := []*vmm.Buffer{filled(t, here, 0), filled(t, here, 0)}
	var exec *cu.GraphExec
	v, word := uint32(0), make([]uint32, 1)
	next := func() *served {
		v++
		require.NoError(t, cu.Fill(here, buffers[v%2].Ptr(), v, 1))
		return replace(t, srv, buffers[v%2])
	}
	before, now := (*served)(nil), next()
	for att, err := range Follow(soon(t), srv.Path(), "data", there.Device(), &AttachOptions{Reservation: room, PeerAccess: true}) {
		require.NoError(t, err)
		require.Equal(t, room.Ptr(), att.Ptr())
		if before != nil {
			require.NoError(t, before.end(t))
		}
		if exec == nil {
			g, err := stream.Capture(func() error { return cu.CopyAsync(stream, out.Ptr(), att.Ptr(), 4) })
			require.NoError(t, err)
			exec, err = g.Instantiate(0)
			require.NoError(t, errors.Join(err, g.Close()))
		}
		require.NoError(t, errors.Join(exec.Launch(stream), cu.CopyToHostAsync(stream, word, out.Ptr()), stream.Synchronize(soon(t))))
		require.Equal(t, v, word[0])
		if v == 100 {
			break
		}
		before, now = now, next()
	}
	require.NoError(t, exec.Close())
	now.cancel()
}

// A consumer that offers memory on, or releases it, waits for the work of the device that uses it,
// and not for that of the memory's device alone.
//
//fault:rows 82
func TestWorkOfAnotherDeviceIsWaitedFor(t *testing.T) {
	here, there := twoDevices(t)
	srv := listen(t)
	put(t, srv, newBuffer(t, here, 64))
	att := attachedFrom(t, srv, there, AttachOptions{Access: cu.ReadWrite, Reoffer: true})
	gate, s := newGate(t, there), newStream(t, there)
	gate.hold(t, s)
	require.NoError(t, cu.FillAsync(s, att.Ptr(), uint8(1), 64))
	more := ok(listen(t).Offer("more", att.Buffer(), &OfferOptions{Pending: true}))(t)
	require.ErrorIs(t, more.Publish(briefly(t)), context.DeadlineExceeded)
	require.NoError(t, more.Close())
	require.ErrorIs(t, att.Release(briefly(t)), context.DeadlineExceeded)
	require.NoError(t, att.Err())
	require.NotZero(t, att.Ptr())
	gate.open(t)
	require.NoError(t, att.Release(soon(t)))
	requireWell(t, there)
}

// hollow is a counter and a stream of the software driver, in which signals are libc's
// pthread_getconcurrency: C that takes what it is given, does nothing and returns 0, so that what is
// measured is ours.
func hollow(t testing.TB) (*Counter, *cu.Stream) {
	t.Helper()
	libc := ok(sys.OpenFile("libc.so.6"))(t)
	drv := ok(cu.Open(cu.WithResolver(func(symbol string) (uintptr, error) {
		switch symbol {
		case "cuStreamWriteValue64_v2", "cuEventRecord":
			return libc("pthread_getconcurrency")
		}
		return soft.Resolver(symbol)
	})))(t)
	ctx := cutest.Context(t, ok(drv.Device(0))(t))
	buf := zeros(t, ctx)
	c := ok(NewCounter(ctx, buf, 0))(t)
	t.Cleanup(func() { require.NoError(t, errors.Join(c.Close(), buf.Close())) })
	return c, newStream(t, ctx)
}

// Invariant 10, of signals: they allocate no more than the two driver calls that they are
// made of, which set the context by a callback here.
func TestSignalDoesNotAllocate(t *testing.T) {
	if cutest.Kind() != cu.Soft {
		t.Skip("nothing of it reaches the driver")
	}
	c, s := hollow(t)
	e := ok(s.Context().NewEvent(cu.EventDisableTiming))(t)
	require.NoError(t, c.Signal(s, 1))
	calls := testing.AllocsPerRun(200, func() { _, _ = s.WriteValue64(c.word, 1, cu.WriteDefault), e.Record(s) })
	n := uint64(1)
	require.Equal(t, calls, testing.AllocsPerRun(200, func() { n++; _ = c.Signal(s, n) }))
	require.NoError(t, e.Close())
}
