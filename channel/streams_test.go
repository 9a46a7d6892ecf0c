package channel

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// Streams and hosts pass frames in any mixture: a writer and two readers each choose at random
// who acquires and publishes, who takes and releases, how far ahead, and when to wait. Each
// frame arrives once, in order, with its own bytes. The seed is told where it fails.
func TestStreamsAndHostsAtRandom(t *testing.T) {
	frames, limit := uint64(600), time.Minute
	switch {
	case cutest.Emulated() || cutest.RaceDetector:
		frames = 100
	case os.Getenv("GPUFD_SOAK") == "1":
		frames = 50_000
		limit = 10 * time.Minute
	case cutest.Kind() == cu.CUDA: // which other processes may use: each takes its turn, of milliseconds
		frames = 150
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	ctx, srv := listening(t)
	copies := pinned(t, ctx, 2*copiesAtOnce*64)
	warmUp(t, ctx)
	w := newWriter(t, ctx, srv, 3, 64, WithStreams())
	wait := soonFor(t, limit)
	var all sync.WaitGroup
	errs := make(chan error, 3)
	for i := range uint64(2) {
		r, s, rng := newReader(t, ctx, srv), newStream(t, ctx), newRandom(seed+i)
		q := &randomReader{r: r, s: s, ctx: ctx, rng: rng, room: copies[i*copiesAtOnce*64:]}
		all.Go(func() { errs <- q.run(wait, frames) })
	}
	s, rng := newStream(t, ctx), newRandom(seed+2)
	all.Go(func() { errs <- writeAtRandom(wait, ctx, w, s, rng, frames) })
	all.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err, "seed %d", seed)
	}
}

// warmUp has what fills memory loaded, which may hang while a stream waits.
func warmUp(t *testing.T, ctx *cu.Context) {
	t.Helper()
	mem := ok(ctx.Alloc(64))(t)
	require.NoError(t, cu.Fill(ctx, mem.Ptr(), uint8(1), 64))
	require.NoError(t, mem.Close())
}

// writeAtRandom publishes frames, each filled with its sequence.
func writeAtRandom(wait context.Context, ctx *cu.Context, w *Writer, s *cu.Stream, rng *rand.Rand, frames uint64) error {
	for n := uint64(1); n <= frames; n++ {
		byStream := rng.IntN(3) > 0
		if !byStream || rng.IntN(20) == 0 { // a host goes on where the stream has done all
			if err := s.Synchronize(wait); err != nil {
				return err
			}
		}
		m := Meta{}
		if rng.IntN(2) == 0 {
			m = Meta{Size: 64, User: []byte{byte(n)}}
		}
		if byStream {
			slot, err := w.AcquireOn(s)
			if err := errors.Join(err, cu.FillAsync(s, slot.Ptr(), uint8(n), 64)); err != nil {
				return err
			}
			if err := w.PublishOn(s, slot, m); err != nil {
				return err
			}
			continue
		}
		slot, err := w.Acquire(wait)
		if err != nil {
			return err
		}
		if err := cu.CopyToDevice(ctx, slot.Ptr(), filled(n)); err != nil {
			return err
		}
		if err := w.Publish(slot, m); err != nil {
			return err
		}
	}
	return s.Synchronize(wait)
}

func filled(n uint64) []byte {
	b := make([]byte, 64)
	for i := range b {
		b[i] = byte(n)
	}
	return b
}

// A randomReader has up to two frames at once, and what its stream copied of them.
type randomReader struct {
	r      *Reader
	s      *cu.Stream
	ctx    *cu.Context
	rng    *rand.Rand
	queued []queuedFrame // that the stream copies, or has
	room   []byte        // for their bytes
}

// copiesAtOnce is how many frames a reader's stream may have copied when the reader looks.
const copiesAtOnce = 9

type queuedFrame struct {
	f Frame
	b []byte
}

func (q *randomReader) run(wait context.Context, frames uint64) error {
	for n := uint64(1); n <= frames; n++ {
		var f Frame
		var err error
		byStream := q.rng.IntN(3) > 0
		if byStream {
			f, err = q.r.NextOn(q.s)
		} else if err = q.settle(wait); err == nil {
			f, err = q.r.Next(wait)
		}
		if err == nil && f.Sequence != n {
			err = fmt.Errorf("frame %d in place of %d", f.Sequence, n)
		}
		if err != nil {
			return err
		}
		b := q.room[len(q.queued)*64:][:64]
		q.queued = append(q.queued, queuedFrame{f, b})
		if err := cu.CopyToHostAsync(q.s, b, f.Ptr()); err != nil {
			return err
		}
		if q.rng.IntN(2) == 0 { // the host releases
			if err := errors.Join(q.s.Synchronize(wait), q.r.Release(f)); err != nil {
				return err
			}
		} else if err := q.r.ReleaseOn(q.s, f); err != nil {
			return err
		}
		if len(q.queued) == copiesAtOnce || q.rng.IntN(8) == 0 {
			if err := q.settle(wait); err != nil {
				return err
			}
		}
	}
	return q.settle(wait)
}

// settle waits for the stream and checks what it has copied.
func (q *randomReader) settle(wait context.Context) error {
	if err := q.s.Synchronize(wait); err != nil {
		return err
	}
	for _, c := range q.queued {
		if err := q.r.Check(c.f); err != nil {
			return err
		}
		if want := filled(c.f.Sequence); string(c.b) != string(want) {
			return fmt.Errorf("frame %d has the bytes %v", c.f.Sequence, c.b[:8])
		}
	}
	q.queued = q.queued[:0]
	return nil
}

// A stream is closed while it is given a step: what it has done is known nevertheless, and another one
// may go on.
func TestStreamClosedWithinAStep(t *testing.T) {
	var first *cu.Stream
	closed := make(chan error, 1)
	var once sync.Once
	ctx := cutest.Context(t, cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		result := next()
		if givesWork(call) && result == sys.CUDA_SUCCESS {
			once.Do(func() {
				go func() { closed <- first.Close() }()
				for first.OnClose(t, nil) { // until Close has begun
					runtime.Gosched()
				}
			})
		}
		return result
	})))
	srv := listen(t)
	w := newWriter(t, ctx, srv, 4, 64, WithStreams())
	r := newReader(t, ctx, srv)
	first = ok(ctx.NewStream())(t)
	f := ok(r.NextOn(first))(t)
	require.NoError(t, ends(t, closed))
	put(t, ctx, w)
	second := newStream(t, ctx)
	require.Eventually(t, func() bool { return r.ReleaseOn(second, f) == nil }, time.Minute, time.Millisecond)
	require.NoError(t, second.Synchronize(soon(t)))
}

// A stream that is being closed is given no more steps, which nobody would mark.
func TestStreamGetsNoStepWhileItIsClosed(t *testing.T) {
	ctx, w, r := newPair(t, 4, 64, WithStreams())
	first := ok(ctx.NewStream())(t)
	put(t, ctx, w)
	f := ok(r.NextOn(first))(t)
	require.True(t, first.OnClose(t, func() {
		require.ErrorIs(t, r.ReleaseOn(first, f), cu.ErrClosed)
		slot, err := w.AcquireOn(first)
		require.NoError(t, err, "that needs no step")
		require.ErrorIs(t, w.PublishOn(first, slot, Meta{}), cu.ErrClosed)
	}))
	require.NoError(t, first.Close())
	second := newStream(t, ctx)
	require.Eventually(t, func() bool { return r.ReleaseOn(second, f) == nil }, time.Minute, time.Millisecond)
	require.NoError(t, second.Synchronize(soon(t)))
}

// A stream that has done all is closed while the driver keeps the first step of the next one. That is
// nothing to wait for, and the reader stays open.
func TestStreamClosedBehindTheNext(t *testing.T) {
	var second atomic.Pointer[cu.Stream]
	kept, hold := make(chan struct{}), make(chan struct{})
	keep := sync.OnceFunc(func() { close(kept) })
	ctx := cutest.Context(t, cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		if s := second.Load(); givesWork(call) && s != nil && call.Arg(0) == uintptr(s.Handle()) {
			keep()
			<-hold
		}
		return next()
	})))
	srv := listen(t)
	w := newWriter(t, ctx, srv, 4, 64, WithStreams())
	r := newReader(t, ctx, srv)
	first := ok(ctx.NewStream())(t)
	put(t, ctx, w)
	put(t, ctx, w)
	require.NoError(t, nextOn(r, first, 1))
	require.NoError(t, first.Synchronize(soon(t)))
	second.Store(newStream(t, ctx))
	took, closed := make(chan error, 1), make(chan error, 1)
	go func() { took <- nextOn(r, second.Load(), 1) }()
	<-kept
	go func() { closed <- first.Close() }()
	select {
	case err := <-closed:
		require.NoError(t, err)
	case <-r.Done():
		require.Fail(t, "the reader is closed")
	}
	close(hold)
	require.NoError(t, ends(t, took))
	require.NoError(t, r.Err())
}

// A stream is closed while it waits for other work, and the driver keeps the mark. The reader is closed
// meanwhile. The stream is closed once that work is done.
func TestStreamClosedWithOtherWork(t *testing.T) {
	crowd, dev := crowdedDevice(t)
	ctx := cutest.Context(t, dev)
	srv := listen(t)
	newWriter(t, ctx, srv, 2, 64, WithStreams())
	r := newReader(t, ctx, srv)
	mem := ok(ctx.AllocHost(pageSize, 0))(t)
	word := words{mem.Bytes()}
	word.store(0, 0)
	defer func() {
		word.store(0, 1) // else the stream still waits if the test has failed
		require.NoError(t, mem.Close())
	}()
	at := mem.Ptr()
	s := ok(ctx.NewStream())(t)
	require.NoError(t, s.BatchMemOps(cu.WaitOp64(at, 1, cu.WaitGEQ)))
	require.NoError(t, nextOn(r, s, 1))
	crowd.on.Store(true)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	<-r.Done()
	require.ErrorIs(t, r.Err(), ErrClosed)
	require.ErrorIs(t, r.Close(), ErrInUse)
	require.Empty(t, closed)
	word.store(0, 1)
	require.NoError(t, ends(t, closed))
	require.NoError(t, r.Close())
}
