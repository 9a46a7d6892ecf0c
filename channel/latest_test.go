package channel

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
)

// requireBytes checks the bytes of a frame that is held.
func requireBytes(t testing.TB, ctx *cu.Context, f Frame) {
	t.Helper()
	b := make([]byte, f.Size())
	require.NoError(t, cu.CopyToHost(ctx, b, f.Ptr()))
	require.NoError(t, checkPattern(b, f.Sequence))
}

// entryIn is what kernels find at the frame's Meta.
func entryIn(t testing.TB, ctx *cu.Context, f Frame) Entry {
	t.Helper()
	b := make([]byte, EntrySize)
	require.NoError(t, cu.CopyToHost(ctx, b, f.Meta))
	return ok(DecodeEntry(b))(t)
}

// requireNone checks that no frame comes.
func requireNone(t testing.TB, r *Reader) {
	t.Helper()
	brief, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, errOf(r.Next(brief)), context.DeadlineExceeded)
}

// newest is a reader of Latest, closed when t ends.
func newest(t testing.TB, ctx *cu.Context, srv interface{ Path() string }, opts ...ReaderOption) *Reader {
	t.Helper()
	r := ok(Open(soon(t), srv.Path(), "frames", ctx, append(opts, WithPolicy(Latest))...))(t)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// Next of a reader of Latest gives the newest frame, which stays as it is until Release, however many come behind it.
func TestLatest(t *testing.T) {
	for _, slots := range []int{3, 4, 8} {
		ctx, srv, w := newChannel(t, slots, 64)
		r := newest(t, ctx, srv)
		for range 5 {
			put(t, ctx, w)
		}
		f := requireFrame(t, ctx, r, 5)
		for range 50 { // which waits for nobody
			put(t, ctx, w)
			requireBytes(t, ctx, f)
		}
		require.ErrorIs(t, errOf(r.Next(soon(t))), ErrOrder, "one frame is held")
		require.NoError(t, r.Whole(f))
		require.EqualValues(t, 5, entryIn(t, ctx, f).Sequence, "Meta stays, too")
		require.NoError(t, r.Release(f))
		require.ErrorIs(t, r.Release(f), ErrOrder)
		require.NoError(t, r.Release(requireFrame(t, ctx, r, 55)))
		s := r.Stats()
		require.Equal(t, []uint64{2, 53, 0}, []uint64{s.Received, s.Lost, s.Passed})
		requireNone(t, r)
		put(t, ctx, w)
		requireFrame(t, ctx, r, 56)
	}
}

// Each of several readers holds a frame of its own, and they are as many as leave two slots.
func TestLatestHoldsASlotEach(t *testing.T) {
	ctx, srv, w := newChannel(t, 5, 64)
	var held []Frame
	var readers []*Reader
	for n := uint64(1); n <= 3; n++ {
		readers = append(readers, newest(t, ctx, srv))
		put(t, ctx, w)
		held = append(held, requireFrame(t, ctx, readers[n-1], n))
	}
	for n := uint64(4); n < 100; n++ {
		put(t, ctx, w)
		for i, f := range held {
			requireBytes(t, ctx, f)
			if n%uint64(i+2) == 0 {
				require.NoError(t, readers[i].Release(f))
				held[i] = requireFrame(t, ctx, readers[i], n)
			}
		}
	}
	require.Zero(t, w.Stats().MaxStall)
}

// The writer waits for a reader that blocks, and takes no slot of one of Latest meanwhile.
func TestLatestBesideBlock(t *testing.T) {
	ctx, srv, w := newChannel(t, 3, 64)
	b, r := newReader(t, ctx, srv), newest(t, ctx, srv)
	put(t, ctx, w)
	f := requireFrame(t, ctx, r, 1)
	require.NoError(t, b.Release(requireFrame(t, ctx, b, 1)))
	put(t, ctx, w)
	put(t, ctx, w)
	brief, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, errOf(w.Acquire(brief)), context.DeadlineExceeded, "one slot is held, and the other reader has two")
	requireBytes(t, ctx, f)
	require.NoError(t, b.Release(requireFrame(t, ctx, b, 2)))
	put(t, ctx, w)
	requireBytes(t, ctx, f)
	require.NoError(t, r.Release(f))
	requireFrame(t, ctx, r, 4)
}

// The newest frame is left alone also where no other slot is free but those that readers which drop the newest keep.
func TestLatestKeepsTheNewest(t *testing.T) {
	latest, keeps := newQueue(Latest, 3), newQueue(DropNewest, 3)
	keeps.give(0)
	for slot := range uint64(3) {
		latest.give(slot)
	}
	slot, free := pick([]*queue{&latest, &keeps}, []uint64{1, 2, 3}, 3, 2)
	require.True(t, free)
	require.EqualValues(t, 1, slot)
	keeps.give(1)
	_, free = pick([]*queue{&latest, &keeps}, []uint64{1, 2, 3}, 3, 2)
	require.False(t, free)
}

// A reader of Latest begins with the newest frame if it says so, and gets the last one when the writer has ended.
func TestLatestJoinsAndEnds(t *testing.T) {
	ctx, srv, w := newChannel(t, 3, 64)
	for range 7 {
		put(t, ctx, w)
	}
	r, later := newest(t, ctx, srv, WithJoin(Newest)), newest2(t, ctx, srv)
	require.Nil(t, later, "there is room for one")
	require.NoError(t, r.Release(requireFrame(t, ctx, r, 7)))
	put(t, ctx, w)
	put(t, ctx, w)
	require.NoError(t, w.Close())
	require.NoError(t, r.Release(requireFrame(t, ctx, r, 9)))
	require.ErrorIs(t, errOf(r.Next(soon(t))), ErrEnded)
	require.EqualValues(t, 1, r.Stats().Lost)
}

// newest2 is a reader of Latest if it is admitted.
func newest2(t testing.TB, ctx *cu.Context, srv interface{ Path() string }) *Reader {
	t.Helper()
	r, err := Open(soon(t), srv.Path(), "frames", ctx, WithPolicy(Latest))
	if err != nil {
		require.ErrorIs(t, err, ErrPolicy)
		require.ErrorContains(t, err, "latest")
		return nil
	}
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// At most slots - 2 readers of Latest are admitted, and fewer beside readers that drop the newest. The refusal names the
// policy and the numbers.
func TestLatestIsAdmitted(t *testing.T) {
	for slots, want := range map[int]int{2: 0, 3: 1, 4: 2, 6: 4} {
		ctx, srv, _ := newChannel(t, slots, 64)
		for range want {
			require.NotNil(t, newest2(t, ctx, srv))
		}
		require.Nil(t, newest2(t, ctx, srv))
		_, err := Open(soon(t), srv.Path(), "frames", ctx, WithPolicy(Latest))
		require.ErrorContains(t, err, admits(Latest, uint64(slots), want, 0).Error())
		if want > 0 {
			_, err = Open(soon(t), srv.Path(), "frames", ctx, WithPolicy(DropNewest))
			require.ErrorIs(t, err, ErrPolicy)
			require.ErrorContains(t, err, admits(DropNewest, uint64(slots), want, 0).Error())
			newReader(t, ctx, srv, WithPolicy(DropOldest))
			newReader(t, ctx, srv)
		}
	}
	ctx, srv, _ := newChannel(t, 6, 64)
	newReader(t, ctx, srv, WithPolicy(DropNewest))
	r := newest(t, ctx, srv)
	require.Nil(t, newest2(t, ctx, srv), "three slots are kept, and two are the writer's")
	require.NoError(t, r.Close())
	require.Eventually(t, func() bool { return newest2(t, ctx, srv) != nil }, time.Minute, time.Millisecond)
}

// The slot that a reader of Latest holds is free again when it dies.
func TestLatestDies(t *testing.T) {
	ctx, srv := listening(t)
	left := make(chan Gone, 2)
	w := newWriter(t, ctx, srv, 3, 64, OnGone(func(g Gone) { left <- g }))
	c := start(t, "reader", task{Path: srv.Path(), Policy: Latest, Join: Next, StopAt: 1})
	require.Equal(t, "joined 1", c.says(t))
	put(t, ctx, w)
	require.Equal(t, "has 1", c.says(t))
	for range 10 {
		put(t, ctx, w)
	}
	c.kill()
	require.Zero(t, gone(t, left).Released)
	r := newest(t, ctx, srv, WithJoin(Newest))
	f := requireFrame(t, ctx, r, 11)
	for range 10 {
		put(t, ctx, w)
		requireBytes(t, ctx, f)
	}
}

// A reader that blocks and holds frames while it waits for the next does not stop the writer for longer than another
// reader keeps a slot.
func TestAcquireGoesOnWithASlotGivenBack(t *testing.T) {
	for _, p := range []Policy{Latest, DropNewest} {
		t.Run(p.String(), func(t *testing.T) {
			ctx, srv, w := newChannel(t, 4, 64)
			b, r := newReader(t, ctx, srv), newReader(t, ctx, srv, WithPolicy(p))
			put(t, ctx, w)
			f := requireFrame(t, ctx, r, 1)
			require.NoError(t, b.Release(requireFrame(t, ctx, b, 1)))
			for n := uint64(2); n <= 4; n++ {
				put(t, ctx, w)
				requireFrame(t, ctx, b, n)
			}
			acquired := make(chan error, 1)
			go func() { acquired <- errOf(w.Acquire(soon(t))) }()
			require.Eventually(t, func() bool { return atomic.LoadUint32(b.bell(offWriterBell)) != 0 }, time.Minute, time.Millisecond, "the writer sleeps")
			require.NoError(t, r.Release(f))
			require.NoError(t, <-acquired)
		})
	}
}
