package share

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
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

// newStream returns a stream, closed when t ends.
func newStream(t testing.TB, ctx *cu.Context) *cu.Stream {
	t.Helper()
	s := ok(ctx.NewStream())(t)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
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
	att := attached(t, srv, "data", there.Device(), AttachOptions{Access: cu.ReadWrite, Reoffer: true, PeerAccess: true})
	word, s, key := newBuffer(t, there, 4), newStream(t, there), newStream(t, there)
	require.NoError(t, cu.Fill(there, word.Ptr(), uint32(0), 1))
	require.NoError(t, s.WaitValue32(word.Ptr(), 1, cu.WaitGEQ))
	goOn := func() {
		require.NoError(t, errors.Join(key.WriteValue32(word.Ptr(), 1, cu.WriteDefault), key.Synchronize(soon(t))))
	}
	t.Cleanup(goOn)
	require.NoError(t, cu.FillAsync(s, att.Ptr(), uint8(1), 64))
	more := ok(listen(t).Offer("more", att.Buffer(), &OfferOptions{Pending: true}))(t)
	require.ErrorIs(t, more.Publish(briefly(t)), context.DeadlineExceeded)
	require.NoError(t, more.Close())
	require.ErrorIs(t, att.Release(briefly(t)), context.DeadlineExceeded)
	require.NoError(t, att.Err())
	require.NotZero(t, att.Ptr())
	goOn()
	require.NoError(t, att.Release(soon(t)))
}
