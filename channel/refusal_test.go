package channel

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
)

// A reader's device may be another than the one that the frames are on, if it has peer access.
func TestTwoDevices(t *testing.T) {
	a, b := cutest.TwoDevices(t, cutest.Driver(t))
	actx, bctx := cutest.Context(t, a), cutest.Context(t, b)
	srv := listen(t)
	w := newWriter(t, actx, srv, 4, 4096, WithStreams())
	r := newReader(t, bctx, srv)
	s := newStream(t, bctx)
	for n := uint64(1); n <= 8; n++ {
		put(t, actx, w)
		f := ok(r.NextOn(s))(t)
		got := make([]byte, 4096)
		require.NoError(t, cu.CopyToHostAsync(s, got, f.Ptr()))
		require.NoError(t, r.ReleaseOn(s, f))
		require.NoError(t, s.Synchronize(soon(t)))
		require.NoError(t, checkPattern(got, n))
	}
}

// A writer and readers on two devices, in processes of their own: one of them is killed, and the
// others go on.
func TestProcessesOnTwoDevices(t *testing.T) {
	a, _ := cutest.TwoDevices(t, cutest.Driver(t))
	ctx := cutest.Context(t, a)
	srv := listen(t)
	w := ok(NewWriter(soon(t), ctx, srv, "frames", 8, 1<<20))(t)
	var readers []*child
	for i, p := range []Policy{Block, Block, DropOldest, DropNewest} {
		c := start(t, "reader", task{Path: srv.Path(), Policy: p, Join: Next, Device: 1, Stall: time.Duration(i) * time.Millisecond, Holds: i % 3, Seed: uint64(i)})
		require.Equal(t, "joined 1", c.says(t))
		readers = append(readers, c)
	}
	const frames = 1000
	publish(t, ctx, w, frames, func(n uint64) {
		if n == frames/2 {
			readers[1].kill()
		}
	})
	require.NoError(t, w.Close())
	for i, c := range readers {
		if i == 1 {
			continue
		}
		received, lost := ended(t, c)
		require.EqualValues(t, frames, received+lost)
		if i == 0 {
			require.Zero(t, lost)
		}
	}
}

// Whatever is asked for that the other side does not allow is refused by name.
func TestRefusals(t *testing.T) {
	ctx, srv := listening(t)
	s := newStream(t, ctx)
	w := ok(NewWriter(soon(t), ctx, srv, "frames", 2, 64))(t)
	_, err := w.AcquireOn(s)
	require.ErrorIs(t, err, ErrPolicy)
	r := ok(Open(soon(t), srv.Path(), "frames", ctx, WithPolicy(DropOldest)))(t)
	_, err = r.NextOn(s)
	require.ErrorIs(t, err, ErrPolicy)
	require.ErrorContains(t, err, "drop-oldest")
	require.NoError(t, r.Close())
	require.NoError(t, w.Close())
	_, err = w.Acquire(soon(t))
	require.ErrorIs(t, err, ErrClosed)
	_, err = r.Next(soon(t))
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, r.Whole(Frame{}), ErrClosed)

	w = ok(NewWriter(soon(t), ctx, srv, "frames", 2, 64, WithStreams(), WithReaders(1)))(t)
	_, err = Open(soon(t), srv.Path(), "frames", ctx, WithPolicy(DropNewest))
	require.ErrorIs(t, err, ErrPolicy)
	require.ErrorContains(t, err, "drop-newest")
	r = ok(Open(soon(t), srv.Path(), "frames", ctx))(t)
	_, err = Open(soon(t), srv.Path(), "frames", ctx)
	require.ErrorIs(t, err, ErrPolicy, "there is room for one")
	_, err = share.Attach(soon(t), srv.Path(), "frames", ctx.Device(), nil)
	require.ErrorIs(t, err, share.ErrRefused)
	require.ErrorContains(t, err, "cursors", "a consumer that does not know of them")
	require.NoError(t, r.Close())
	require.NoError(t, w.Close())

	for _, bad := range []func() error{
		func() error { _, err := NewWriter(soon(t), ctx, srv, "x", 0, 64); return err },
		func() error { _, err := NewWriter(soon(t), ctx, srv, "x", 2, 0); return err },
		func() error { _, err := NewWriter(soon(t), ctx, srv, "x", MaxSlots+1, 64); return err },
		func() error { _, err := NewWriter(soon(t), ctx, srv, "x", 2, 1<<63); return err },
		func() error { _, err := NewWriter(soon(t), nil, srv, "x", 2, 64); return err },
		func() error { _, err := NewWriter(soon(t), ctx, nil, "x", 2, 64); return err },
		func() error { _, err := NewWriter(soon(t), ctx, srv, "x", 2, 64, WithReaders(65)); return err },
		func() error {
			_, err := NewWriter(soon(t), ctx, srv, "x", 2, 64, WithOffer(share.OfferOptions{Pending: true}))
			return err
		},
		func() error {
			_, err := NewWriter(soon(t), ctx, srv, "x", 2, 64, WithOffer(share.OfferOptions{Access: cu.ReadWrite}))
			return err
		},
		func() error { _, err := NewWriter(soon(t), ctx, srv, "x", 2, 64, WithDropAfter(-1)); return err },
		func() error { _, err := Open(soon(t), srv.Path(), "x", nil); return err },
		func() error { _, err := Open(soon(t), srv.Path(), "x", ctx, WithPolicy(9)); return err },
		func() error { _, err := Open(soon(t), srv.Path(), "x", ctx, WithJoin(0)); return err },
	} {
		require.Error(t, bad())
	}
	require.NoError(t, (*Writer)(nil).Close())
	require.NoError(t, (*Reader)(nil).Close())
}
