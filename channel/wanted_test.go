package channel

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share"
)

// In a channel of one slot the writer writes while nobody has the frame, by hosts and by streams.
func TestOneSlot(t *testing.T) {
	t.Run("hosts", func(t *testing.T) {
		ctx, srv, w := newChannel(t, 1, 64)
		readers := []*Reader{newReader(t, ctx, srv), newReader(t, ctx, srv)}
		for n := uint64(1); n <= 5; n++ {
			put(t, ctx, w)
			acquired := acquiringSlot(t, w)
			for _, r := range readers {
				f := requireFrame(t, ctx, r, n)
				require.ErrorIs(t, errOf(r.Next(soon(t))), ErrOrder, "there is no other slot")
				require.NoError(t, r.AwaitWanted(soon(t)))
				requireBytes(t, ctx, f)
				require.Empty(t, acquired)
				require.NoError(t, r.Release(f))
			}
			require.EqualValues(t, 0, (<-acquired).Index)
		}
	})
	t.Run("streams", func(t *testing.T) {
		ctx, w, r := newPair(t, 1, 64, WithStreams())
		ws, rs := newStream(t, ctx), newStream(t, ctx)
		warmUp(t, ctx)
		copies := pinned(t, ctx, 3*64)
		for n := uint64(1); n <= 3; n++ {
			slot := ok(w.AcquireOn(ws))(t)
			require.NoError(t, cu.FillAsync(ws, slot.Ptr(), uint8(n), 64))
			require.NoError(t, w.PublishOn(ws, slot, Meta{}))
			f := ok(r.NextOn(rs))(t)
			require.NoError(t, cu.CopyToHostAsync(rs, copies[(n-1)*64:][:64], f.Ptr()))
			require.NoError(t, r.ReleaseOn(rs, f))
		}
		require.NoError(t, rs.Synchronize(soon(t)))
		for n := range uint64(3) {
			require.Equal(t, filled(n+1), copies[n*64:][:64])
		}
	})
}

// One slot is for readers that block: both sides refuse the others by name.
func TestOneSlotRefuses(t *testing.T) {
	ctx, srv, _ := newChannel(t, 1, 64)
	for _, p := range policies[1:] {
		_, err := Open(soon(t), srv.Path(), "frames", ctx, WithPolicy(p))
		require.ErrorIs(t, err, ErrPolicy)
		require.ErrorContains(t, err, p.String())
		require.ErrorContains(t, err, "one slot")
		refusedByWriter(t, ctx, srv, p)
	}
}

// refusedByWriter checks that the writer refuses a reader of that policy, which asks nevertheless.
func refusedByWriter(t *testing.T, ctx *cu.Context, srv *share.Server, p Policy) {
	t.Helper()
	att := ok(share.Attach(soon(t), srv.Path(), "frames", ctx.Device(), &share.AttachOptions{MaxCursors: maxCursorSize}))(t)
	w := ok(mapWords(att.Cursors().Fd(), minCursorSize))(t)
	w.store(offPolicy, uint64(p))
	w.store(offJoin, uint64(Next))
	w.store(offReaderState, readerJoined)
	<-att.Done()
	require.Equal(t, writerRefused, w.load(offWriterState))
	require.Zero(t, w.load(offStart))
	require.ErrorContains(t, att.Err(), p.String())
	require.NoError(t, unix.Munmap(w.b))
	require.NoError(t, att.Close())
}

// A reader that keeps a frame learns that the writer waits, and that it has ended, is lost, or does not wait any more.
func TestWanted(t *testing.T) {
	ctx, srv, w := newChannel(t, 2, 64)
	r := newReader(t, ctx, srv)
	over, cancel := context.WithCancel(context.Background())
	put(t, ctx, w)
	put(t, ctx, w)
	f := requireFrame(t, ctx, r, 1)
	waits := make(chan error)
	go func() { waits <- errOf(w.Acquire(over)) }()
	require.NoError(t, r.AwaitWanted(soon(t)))
	cancel()
	require.ErrorIs(t, <-waits, context.Canceled)
	require.Zero(t, r.load(offWanted), "it does not wait any more")
	require.ErrorIs(t, r.AwaitWanted(over), context.Canceled)
	told := make(chan error)
	go func() { told <- r.AwaitWanted(soon(t)) }()
	require.NoError(t, r.Err())
	require.NoError(t, w.Close())
	require.ErrorIs(t, <-told, ErrEnded)
	require.NoError(t, r.Release(f), "which was whole")
	require.NoError(t, r.Close())
	require.ErrorIs(t, r.AwaitWanted(soon(t)), ErrClosed)
	require.ErrorIs(t, (*Reader)(nil).AwaitWanted(soon(t)), ErrClosed)
}

// The writer knows what its readers have noted, also when they are dead.
func TestNoted(t *testing.T) {
	for name, opts := range map[string][]WriterOption{"in order": nil, "in any order": {WithAnyOrder()}} {
		t.Run(name, func(t *testing.T) {
			left := make(chan Gone, 2)
			ctx, srv, w := newChannel(t, 2, 64, append(opts, OnGone(func(g Gone) { left <- g }))...)
			require.Empty(t, w.Noted())
			r := newReader(t, ctx, srv)
			require.Equal(t, []uint64{0}, w.Noted())
			require.NoError(t, r.Note(1<<64-1))
			require.Equal(t, []uint64{1<<64 - 1}, w.Noted())
			c := start(t, "reader", task{Path: srv.Path(), Policy: Block, Join: Next, Note: 41})
			c.says(t)
			require.ElementsMatch(t, []uint64{1<<64 - 1, 41}, w.Noted())
			c.kill()
			require.EqualValues(t, 41, gone(t, left).Noted)
			require.NoError(t, r.Note(7))
			require.NoError(t, r.Close())
			require.EqualValues(t, 7, gone(t, left).Noted)
			require.ErrorIs(t, r.Note(8), ErrClosed)
			require.ErrorIs(t, (*Reader)(nil).Note(8), ErrClosed)
			require.Empty(t, (*Writer)(nil).Noted())
		})
	}
}

// A writer that waits rings the bell of the reader that it waits for, which may sleep.
func TestWantedRings(t *testing.T) {
	ctx, w, r := newPair(t, 1, 64)
	put(t, ctx, w)
	f := requireFrame(t, ctx, r, 1)
	bell := r.bell(offReaderBell)
	atomic.StoreUint32(bell, 1)
	acquired := acquiringSlot(t, w)
	require.Eventually(t, func() bool { return atomic.LoadUint32(bell) == 0 }, time.Minute, time.Millisecond)
	require.EqualValues(t, 2, r.load(offWanted))
	require.NoError(t, r.Release(f))
	<-acquired
}

// A slot that the writer wanted earlier, for the frame that is kept or one before, is not wanted any more.
func TestWantedEarlier(t *testing.T) {
	ctx, w, r := newPair(t, 3, 64, WithAnyOrder())
	put(t, ctx, w)
	put(t, ctx, w)
	requireFrame(t, ctx, r, 1)
	requireFrame(t, ctx, r, 2)
	for _, old := range []uint64{1, 2} {
		r.store(offWanted, old)
		brief, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		require.ErrorIs(t, r.AwaitWanted(brief), context.DeadlineExceeded)
		cancel()
	}
	r.store(offWanted, 3)
	require.NoError(t, r.AwaitWanted(soon(t)))
	require.NoError(t, w.Close())
}

// A reader that notes a number wakes the writer's application, which may sleep.
func TestNoteRings(t *testing.T) {
	_, _, r := newPair(t, 1, 64)
	bell := r.bell(offWriterBell)
	atomic.StoreUint32(bell, 1)
	require.NoError(t, r.Note(5))
	require.Zero(t, atomic.LoadUint32(bell))
}
