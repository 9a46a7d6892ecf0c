package channel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// acquiringSlot acquires a slot meanwhile.
func acquiringSlot(t *testing.T, w *Writer) <-chan Slot {
	slots := make(chan Slot, 1)
	ctx := soon(t)
	go func() {
		if s, err := w.Acquire(ctx); err == nil {
			slots <- s
		}
		close(slots)
	}()
	return slots
}

// A slot is written again when it was given back, whatever else is kept; what is kept stays as it is.
func TestAnyOrder(t *testing.T) {
	ctx, w, r := newPair(t, 3, 64, WithAnyOrder())
	var frames []Frame
	for n := uint64(1); n <= 3; n++ {
		put(t, ctx, w)
		frames = append(frames, requireFrame(t, ctx, r, n))
	}
	require.ErrorIs(t, errOf(r.Next(soon(t))), ErrOrder, "all slots are held")
	for round, i := range []int{1, 2, 1, 0, 2} {
		acquired := acquiringSlot(t, w)
		require.NoError(t, r.AwaitWanted(soon(t)), "the writer waits")
		require.NoError(t, r.Release(frames[i]))
		require.ErrorIs(t, r.Release(frames[i]), ErrOrder)
		slot, there := <-acquired
		require.True(t, there)
		require.Equal(t, frames[i].Index, slot.Index)
		put(t, ctx, w)
		frames[i] = requireFrame(t, ctx, r, uint64(4+round))
		for _, f := range frames {
			requireBytes(t, ctx, f)
			require.NoError(t, r.Whole(f))
		}
	}
	require.NoError(t, w.Close())
	for _, f := range frames {
		require.NoError(t, r.Release(f))
	}
	require.ErrorIs(t, errOf(r.Next(soon(t))), ErrEnded)
	require.Equal(t, Stats{Received: 8}, r.Stats())
}

// Streams publish and release, behind work that they have; the host goes on, and no stream waits for the other side.
func TestAnyOrderByStreams(t *testing.T) {
	ctx, w, r := newPair(t, 4, 64, WithAnyOrder())
	ws, rs := newStream(t, ctx), newStream(t, ctx)
	gate := newGate(t, ctx)
	gate.hold(t, ws)
	for n := uint64(1); n <= 3; n++ { // the host is ahead of its stream
		slot := ok(w.Acquire(soon(t)))(t)
		require.NoError(t, cu.FillAsync(ws, slot.Ptr(), uint8(n), 64))
		require.NoError(t, w.PublishOn(ws, slot, Meta{User: []byte{byte(n)}}))
		require.EqualValues(t, n, w.Last())
	}
	requireNone(t, r)
	slot := ok(w.Acquire(soon(t)))(t)
	require.ErrorIs(t, w.Publish(slot, Meta{}), ErrOrder, "the stream has still to publish")
	gate.open()
	require.NoError(t, ws.Synchronize(soon(t)))
	require.NoError(t, cu.CopyToDevice(ctx, slot.Ptr(), filled(4)))
	require.NoError(t, w.Publish(slot, Meta{User: []byte{4}}))

	var frames []Frame
	for n := uint64(1); n <= 4; n++ {
		f := ok(r.Next(soon(t)))(t)
		require.Equal(t, []byte{byte(n)}, f.User())
		require.Zero(t, f.Meta, "its entry is another frame's later")
		b := make([]byte, 64)
		require.NoError(t, cu.CopyToHost(ctx, b, f.Ptr()))
		require.Equal(t, filled(n), b)
		frames = append(frames, f)
	}
	gate.hold(t, rs)
	require.NoError(t, r.ReleaseOn(rs, frames[2]))
	require.ErrorIs(t, r.ReleaseOn(rs, frames[2]), ErrOrder)
	require.ErrorIs(t, r.Release(frames[2]), ErrOrder)
	acquired := acquiringSlot(t, w)
	require.NoError(t, r.AwaitWanted(soon(t)))
	gate.open()
	require.Equal(t, frames[2].Index, (<-acquired).Index)
	require.NoError(t, r.Release(frames[0]), "the host may release, too")
}

// A gate keeps streams at work until it is opened.
type gate struct{ mem *cu.HostMemory }

func newGate(t *testing.T, ctx *cu.Context) *gate {
	g := &gate{ok(ctx.AllocHost(pageSize, 0))(t)}
	t.Cleanup(func() { require.NoError(t, g.mem.Close()) })
	t.Cleanup(g.open)
	return g
}

func (g *gate) hold(t *testing.T, s *cu.Stream) {
	words{g.mem.Bytes()}.store(0, 0)
	require.NoError(t, s.BatchMemOps(cu.WaitOp64(g.mem.Ptr(), 1, cu.WaitGEQ)))
}

func (g *gate) open() { words{g.mem.Bytes()}.store(0, 1) }

// Hosts and streams publish and release at random, two readers keep what they like for as long as they like, and every
// frame that is kept stays what it is. The seed is told where it fails.
func TestAnyOrderAtRandom(t *testing.T) {
	frames, limit := uint64(500), time.Minute
	switch {
	case cutest.Emulated() || cutest.RaceDetector:
		frames = 100
	case os.Getenv("GPUFD_SOAK") == "1":
		frames, limit = 50_000, 10*time.Minute
	case cutest.Kind() == cu.CUDA:
		frames = 150
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	ctx, srv, w := newChannel(t, 6, 64, WithAnyOrder())
	wait := soonFor(t, limit)
	copies := pinned(t, ctx, 2*64)
	warmUp(t, ctx)
	var all sync.WaitGroup
	errs := make(chan error, 3)
	for i := range uint64(2) {
		k := &shuffler{r: newReader(t, ctx, srv), s: newStream(t, ctx), ctx: ctx, rng: newRandom(seed + i), room: copies[i*64:][:64]}
		all.Go(func() { errs <- k.run(wait, frames) })
	}
	s, rng := newStream(t, ctx), newRandom(seed+2)
	all.Go(func() { errs <- publishAtRandom(wait, ctx, w, s, rng, frames) })
	all.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err, "seed %d", seed)
	}
}

// publishAtRandom publishes frames, each filled with its sequence.
func publishAtRandom(wait context.Context, ctx *cu.Context, w *Writer, s *cu.Stream, rng *rand.Rand, frames uint64) error {
	for n := uint64(1); n <= frames; n++ {
		slot, err := w.Acquire(wait)
		if err != nil {
			return err
		}
		if rng.IntN(3) > 0 {
			err = errors.Join(cu.FillAsync(s, slot.Ptr(), uint8(n), 64), w.PublishOn(s, slot, Meta{}))
		} else {
			err = errors.Join(s.Synchronize(wait), cu.CopyToDevice(ctx, slot.Ptr(), filled(n)), w.Publish(slot, Meta{}))
		}
		if err != nil {
			return err
		}
	}
	return s.Synchronize(wait)
}

// A shuffler is a reader that has up to three frames at once, and gives them back in any order.
type shuffler struct {
	r    *Reader
	s    *cu.Stream
	ctx  *cu.Context
	rng  *rand.Rand
	held []Frame
	room []byte
}

func (k *shuffler) run(wait context.Context, frames uint64) error {
	for n := uint64(1); n <= frames; n++ {
		f, err := k.r.Next(wait)
		if err == nil && f.Sequence != n {
			err = fmt.Errorf("frame %d in place of %d", f.Sequence, n)
		}
		if err != nil {
			return err
		}
		k.held = append(k.held, f)
		for len(k.held) == 3 || len(k.held) > 0 && k.rng.IntN(2) == 0 {
			if err := k.giveBack(wait, k.rng.IntN(len(k.held))); err != nil {
				return err
			}
		}
	}
	return k.s.Synchronize(wait)
}

// giveBack releases one that is held, once it was looked at, or behind a copy of it.
func (k *shuffler) giveBack(wait context.Context, i int) error {
	f := k.held[i]
	k.held = slices.Delete(k.held, i, i+1)
	byStream := k.rng.IntN(2) == 0
	err := cu.CopyToHostAsync(k.s, k.room, f.Ptr())
	if byStream {
		err = errors.Join(err, k.r.ReleaseOn(k.s, f))
	}
	if err = errors.Join(err, k.s.Synchronize(wait)); err == nil && string(k.room) != string(filled(f.Sequence)) {
		err = fmt.Errorf("frame %d has the bytes %v", f.Sequence, k.room[:8])
	}
	if !byStream {
		err = errors.Join(err, k.r.Release(f))
	}
	return err
}

// A channel of that kind refuses by name what it does not allow, on both sides.
func TestAnyOrderRefuses(t *testing.T) {
	ctx, srv, w := newChannel(t, 4, 64, WithAnyOrder())
	s := newStream(t, ctx)
	require.ErrorIs(t, errOf(w.AcquireOn(s)), ErrPolicy)
	r := newReader(t, ctx, srv)
	require.ErrorIs(t, errOf(r.NextOn(s)), ErrPolicy)
	for _, p := range policies[1:] {
		_, err := Open(soon(t), srv.Path(), "frames", ctx, WithPolicy(p))
		require.ErrorIs(t, err, ErrPolicy)
		require.ErrorContains(t, err, p.String())
		require.ErrorContains(t, err, "any order")
		refusedByWriter(t, ctx, srv, p)
	}
	for _, bad := range []func() error{
		func() error { return errOf(NewWriter(soon(t), ctx, srv, "x", 385, 64, WithAnyOrder())) },
		func() error { return errOf(NewWriter(soon(t), ctx, srv, "x", 2, 64, WithAnyOrder(), WithStreams())) },
	} {
		require.ErrorContains(t, bad(), "any order")
	}
	most := ok(NewWriter(soon(t), ctx, srv, "x", 384, 64, WithAnyOrder()))(t)
	require.NoError(t, most.Close())
}
