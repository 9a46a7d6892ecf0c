package channel

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// Frames go from one process to another, in order, all of them, until the writer ends.
func TestFramesBetweenProcesses(t *testing.T) {
	dev := cutest.Device(t)
	ctx := cutest.Context(t, dev)
	srv := listen(t)
	w := ok(NewWriter(soon(t), ctx, srv, "frames", 4, 4096))(t)
	c := start(t, "reader", task{Path: srv.Path(), Policy: Block, Join: Next})
	require.Equal(t, "joined 1", c.says(t))
	for range 1000 {
		put(t, ctx, w)
	}
	require.NoError(t, w.Close())
	require.Equal(t, "received 1000 lost 0 passed 0", c.says(t))
	c.end(t)
}

// In one process, too; what the writer says of a frame arrives with it.
func TestMetaGoesWithTheFrame(t *testing.T) {
	_, w, r := newPair(t, 2, 100)
	s, err := w.Acquire(soon(t))
	require.NoError(t, err)
	user := make([]byte, MaxUser)
	pattern(user, 3)
	require.Error(t, w.Publish(s, Meta{Size: 101}))
	require.Error(t, w.Publish(s, Meta{User: make([]byte, MaxUser+1)}))
	require.NoError(t, w.Publish(s, Meta{Time: 5, Size: 99, User: user[:201]}))
	f := ok(r.Next(soon(t)))(t)
	require.Equal(t, []any{uint64(1), s.Index, uint64(99), int64(5), user[:201]}, []any{f.Sequence, f.Index, f.Size(), f.Time, f.User()})
	require.NoError(t, r.Release(f))
	require.ErrorIs(t, r.Release(f), ErrOrder)
	require.ErrorIs(t, w.Publish(s, Meta{}), ErrOrder)
}

// A writer waits for a reader that blocks, and for no other.
func TestPolicies(t *testing.T) {
	for policy, want := range map[Policy]struct{ first, received, lost uint64 }{
		DropOldest: {20, 1, 19}, // it was passed by, and goes on with the newest
		DropNewest: {1, 2, 0},   // half of the slots
	} {
		t.Run(policy.String(), func(t *testing.T) {
			ctx, srv, w := newChannel(t, 4, 64)
			r := newReader(t, ctx, srv, WithPolicy(policy))
			for range 20 {
				put(t, ctx, w)
			}
			f := requireFrame(t, ctx, r, want.first)
			require.NoError(t, r.Release(f))
			for n := want.first + 1; n <= want.first+want.received-1; n++ {
				require.NoError(t, r.Release(requireFrame(t, ctx, r, n)))
			}
			require.Equal(t, Stats{Received: want.received, Lost: want.lost}, r.Stats())
			put(t, ctx, w)
			require.NoError(t, r.Release(requireFrame(t, ctx, r, 21)))
			require.EqualValues(t, 21, r.Stats().Received+r.Stats().Lost, "each frame was taken or is lost")
		})
	}
	t.Run("block", func(t *testing.T) {
		ctx, w, r := newPair(t, 4, 64)
		for range 4 {
			put(t, ctx, w)
		}
		brief, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, errOf(w.Acquire(brief)), context.DeadlineExceeded)
		require.NoError(t, r.Release(requireFrame(t, ctx, r, 1)))
		put(t, ctx, w)
		for n := uint64(2); n <= 5; n++ {
			require.NoError(t, r.Release(requireFrame(t, ctx, r, n)))
		}
	})
}

// A reader that was passed by while it had a frame can tell.
func TestPassedBy(t *testing.T) {
	ctx, srv, w := newChannel(t, 2, 64)
	r := newReader(t, ctx, srv, WithPolicy(DropOldest))
	put(t, ctx, w)
	f := requireFrame(t, ctx, r, 1)
	put(t, ctx, w)
	require.NoError(t, r.Whole(f))
	require.NoError(t, errOf(w.Acquire(soon(t))))
	require.ErrorIs(t, r.Whole(f), ErrPassed)
	require.ErrorIs(t, r.Release(f), ErrPassed)
	require.EqualValues(t, 1, r.Stats().Passed)
	require.NoError(t, r.Release(requireFrame(t, ctx, r, 2)))
}

// A reader joins at the newest frame or at the next.
func TestJoin(t *testing.T) {
	ctx, srv, w := newChannel(t, 4, 64)
	for range 7 {
		put(t, ctx, w)
	}
	newest := newReader(t, ctx, srv, WithJoin(Newest))
	next := newReader(t, ctx, srv)
	require.EqualValues(t, 7, newest.First())
	require.EqualValues(t, 8, next.First())
	require.NoError(t, newest.Release(requireFrame(t, ctx, newest, 7)))
	put(t, ctx, w)
	for _, r := range []*Reader{newest, next} {
		require.NoError(t, r.Release(requireFrame(t, ctx, r, 8)))
		require.Zero(t, r.Stats().Lost)
	}
}

// A reader is admitted also by a writer that ends at once.
func TestJoinAWriterThatEndsAtOnce(t *testing.T) {
	ctx, srv := listening(t)
	newWriter(t, ctx, srv, 2, 64)
	r := newReader(t, ctx, srv)
	const rounds = 20000
	wait := soon(t)
	var round atomic.Int64
	var ending sync.WaitGroup
	ending.Go(func() {
		for n := int64(1); n <= rounds; n++ {
			for round.Load() < n {
				runtime.Gosched()
			}
			for range n % 64 { // at 64 different moments
				round.Load()
			}
			r.store(offStart, 1)
			r.store(offWriterState, writerEnded)
		}
	})
	refused := 0
	for n := int64(1); n <= rounds; n++ {
		r.store(offWriterState, writerOpen)
		r.store(offStart, 0)
		round.Store(n)
		if r.ask(wait) != nil {
			refused++
		}
		for r.load(offWriterState) == writerOpen {
			runtime.Gosched()
		}
	}
	ending.Wait()
	r.store(offWriterState, writerOpen)
	require.Zero(t, refused)
}

// A reader that holds its slot too long is dropped, or the writer is told, as chosen.
//
//fault:rows 93
func TestStalledReader(t *testing.T) {
	for drop, stall := range map[bool]func(time.Duration) WriterOption{false: WithStallLimit, true: WithDropAfter} {
		t.Run(fmt.Sprint("drop ", drop), func(t *testing.T) {
			gone := make(chan Gone, 1)
			ctx, w, r := newPair(t, 2, 64, stall(20*time.Millisecond), OnGone(func(g Gone) { gone <- g }))
			put(t, ctx, w)
			put(t, ctx, w)
			_, err := w.Acquire(soon(t))
			if !drop {
				require.ErrorIs(t, err, ErrStalled)
				require.Equal(t, 1, w.Readers())
				require.NoError(t, r.Release(requireFrame(t, ctx, r, 1)))
				put(t, ctx, w)
				return
			}
			require.NoError(t, err)
			require.Zero(t, w.Readers())
			require.ErrorIs(t, (<-gone).Err, ErrStalled)
			<-r.Done()
			require.ErrorIs(t, r.Err(), ErrDropped)
			require.ErrorIs(t, errOf(r.Next(soon(t))), ErrDropped, "its slots are not kept")
		})
	}
}

// Streams are given frames ahead, and wait for each other.
func TestStreams(t *testing.T) {
	ctx, srv := listening(t)
	const frames = 50
	copies, host := pinned(t, ctx, frames*64), make([][]byte, frames)
	w := newWriter(t, ctx, srv, 3, 64, WithStreams())
	r := newReader(t, ctx, srv)
	ws, rs := newStream(t, ctx), newStream(t, ctx)
	var taken []Frame
	for n := range uint64(frames) {
		s := ok(w.AcquireOn(ws))(t)
		require.Equal(t, n+1, s.Sequence)
		require.NoError(t, cu.FillAsync(ws, s.Ptr(), uint8(n+1), s.Size()))
		require.NoError(t, w.PublishOn(ws, s, Meta{Size: n + 1}))
	}
	for n := range uint64(frames) {
		f := ok(r.NextOn(rs))(t)
		host[n] = copies[n*64:][:64]
		require.NoError(t, cu.CopyToHostAsync(rs, host[n], f.Ptr()))
		require.NoError(t, r.ReleaseOn(rs, f))
		taken = append(taken, f)
	}
	require.NoError(t, rs.Synchronize(soon(t)))
	for n, b := range host {
		require.Equal(t, uint64(n+1), taken[n].Sequence)
		require.NoError(t, r.Check(taken[n]))
		for _, v := range b {
			require.Equal(t, byte(n+1), v)
		}
	}
	require.ErrorIs(t, w.Publish(Slot{}, Meta{}), ErrOrder)
}

func newStream(t testing.TB, ctx *cu.Context) *cu.Stream {
	t.Helper()
	s := ok(ctx.NewStream())(t)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}
