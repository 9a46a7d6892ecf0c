package channel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/share"
)

// A writer that lives does not keep the slots of a reader that it has counted out: what that
// has, or was given, is not told to be whole any more, however its lease has ended.
func TestCountedOutReaderIsGivenNothingMore(t *testing.T) {
	for name, end := range map[string]func(*Writer, *member){
		"dropped": func(w *Writer, m *member) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.drop(m, writerDropped, ErrStalled)
		},
		"the lease has ended": func(_ *Writer, m *member) { m.lease.Revoke("") },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, srv := listening(t)
			left := make(chan Gone, 1)
			w := newWriter(t, ctx, srv, 2, 64, OnGone(func(g Gone) { left <- g }))
			r := newReader(t, ctx, srv)
			put(t, ctx, w)
			put(t, ctx, w)
			f := requireFrame(t, ctx, r, 1)
			require.NoError(t, r.Whole(f))
			w.mu.Lock()
			m := w.readers[0]
			w.mu.Unlock()
			end(w, m)
			gone(t, left)
			put(t, ctx, w) // into the slot of frame 1
			put(t, ctx, w) // and that of frame 2
			require.ErrorIs(t, r.Whole(f), ErrDropped)
			require.ErrorIs(t, r.Release(f), ErrDropped)
			require.ErrorIs(t, errOf(r.Next(soon(t))), ErrDropped)
		})
	}
}

// The connection of a reader ends, and its writer lives. It gives frames, or drops the reader, before the
// reader has noted that. The reader reports the end, and no nonsense.
func TestWriterGoesOnWhileItsEndIsSeen(t *testing.T) {
	for name, drops := range map[string]bool{"gives": false, "drops": true} {
		t.Run(name, func(t *testing.T) {
			ctx, srv := listening(t)
			left := make(chan Gone, 1)
			w := newWriter(t, ctx, srv, 8, 64, OnGone(func(g Gone) { left <- g }))
			r := newReader(t, ctx, srv)
			put(t, ctx, w)
			requireFrame(t, ctx, r, 1)
			w.mu.Lock() // as Publish does: the writer cannot drop the reader meanwhile
			writerGoesOn := sync.OnceFunc(w.mu.Unlock)
			defer writerGoesOn()
			r.mu.Lock() // the reader looks what was published, and does not note yet that it has lost the writer
			readerGoesOn := sync.OnceFunc(r.mu.Unlock)
			defer readerGoesOn()
			m := w.readers[0]
			m.lease.Revoke("")
			require.Eventually(t, func() bool { return waitsForLock("channel.(*Reader).watch(") }, time.Minute, time.Millisecond)
			for n := uint64(2); n <= 5; n++ {
				m.publish(n, n, &Meta{})
				f := ok(r.Next(soon(t)))(t)
				require.Equal(t, n, f.Sequence)
			}
			want := ErrLost
			if drops {
				want = ErrDropped
				writerGoesOn()
				gone(t, left)
			}
			readerGoesOn()
			<-r.Done()
			require.ErrorIs(t, r.Err(), want)
			require.ErrorIs(t, errOf(r.Next(soon(t))), want)
		})
	}
}

// waitsForLock reports whether a goroutine in that function waits for a lock.
func waitsForLock(function string) bool {
	stacks := make([]byte, 1<<20)
	for _, s := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if strings.Contains(s, function) && strings.Contains(s, "[sync.Mutex.Lock") {
			return true
		}
	}
	return false
}

// The host does not take, publish or release what a stream has still to get to.
func TestHostsWaitForStreams(t *testing.T) {
	ctx, w, r := newPair(t, 2, 64, WithStreams())
	ws, rs := newStream(t, ctx), newStream(t, ctx)
	early := ok(r.NextOn(rs))(t)
	require.ErrorIs(t, r.Release(early), ErrOrder, "it has not come")
	put(t, ctx, w)
	put(t, ctx, w)
	require.NoError(t, rs.Synchronize(soon(t)))
	slot := ok(w.AcquireOn(ws))(t)
	require.ErrorIs(t, errOf(w.Acquire(soon(t))), ErrOrder, "the reader has it still")
	require.ErrorIs(t, w.Publish(slot, Meta{}), ErrOrder)
	require.NoError(t, r.Release(early))
	require.NoError(t, ws.Synchronize(soon(t)))
	again := ok(w.Acquire(soon(t)))(t)
	require.Equal(t, slot, again)
	require.NoError(t, w.Publish(slot, Meta{}))
	require.EqualValues(t, 3, w.Last())
}

// A reader that keeps a stream waiting is found also where the host has published before, and
// where it says what cannot be.
func TestStreamIsStalledBehindHosts(t *testing.T) {
	for name, lie := range map[string]func(r *Reader){
		"nothing":     func(*Reader) {},
		"huge number": func(r *Reader) { r.store(offReleased, 1<<64-1) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, srv := listening(t)
			left := make(chan Gone, 1)
			w := newWriter(t, ctx, srv, 2, 64, WithStreams(), WithDropAfter(50*time.Millisecond), OnGone(func(g Gone) { left <- g }))
			r := newReader(t, ctx, srv)
			for n := uint64(1); n <= 5; n++ {
				put(t, ctx, w)
				if n <= 3 {
					require.NoError(t, r.Release(requireFrame(t, ctx, r, n)))
				}
			}
			s := newStream(t, ctx)
			slot := ok(w.AcquireOn(s))(t)
			lie(r)
			require.ErrorIs(t, gone(t, left).Err, ErrStalled)
			require.NoError(t, w.PublishOn(s, slot, Meta{}))
			require.NoError(t, s.Synchronize(soon(t)))
		})
	}
}

// A reader that was dropped cannot keep a stream waiting by writing all the time.
func TestLiarDoesNotKeepAStream(t *testing.T) {
	ctx, srv := listening(t)
	left := make(chan Gone, 1)
	w := newWriter(t, ctx, srv, 2, 64, WithStreams(), WithDropAfter(20*time.Millisecond), OnGone(func(g Gone) { left <- g }))
	r := newReader(t, ctx, srv)
	s := newStream(t, ctx)
	for range 5 {
		slot := ok(w.AcquireOn(s))(t)
		require.NoError(t, w.PublishOn(s, slot, Meta{}))
	}
	processors := runtime.GOMAXPROCS(max(4, runtime.GOMAXPROCS(0))) // the liar stands for a process, which has its own
	var stop atomic.Bool
	var lying sync.WaitGroup
	lying.Go(func() {
		for !stop.Load() {
			r.store(offReleased, 0)
		}
	})
	t.Cleanup(func() { // before the word is unmapped
		stop.Store(true)
		lying.Wait()
		r.store(offReleased, given) // else nothing ends if the test has failed
		runtime.GOMAXPROCS(processors)
	})
	require.NoError(t, s.Synchronize(soon(t)))
	gone(t, left)
}

// A frame that a stream published has a size for readers that join behind, too.
func TestNewestOfAStream(t *testing.T) {
	ctx, srv, w := newChannel(t, 4, 64, WithStreams())
	s := newStream(t, ctx)
	slot := ok(w.AcquireOn(s))(t)
	require.NoError(t, w.PublishOn(s, slot, Meta{}))
	require.NoError(t, s.Synchronize(soon(t)))
	f := ok(newReader(t, ctx, srv, WithJoin(Newest)).Next(soon(t)))(t)
	require.EqualValues(t, 64, f.Size())
}

// A reader that wants the newest frame joins a channel for streams at once, without a frame that a stream has still to publish.
func TestNewestOfAStreamThatWaits(t *testing.T) {
	ctx, srv, w := newChannel(t, 4, 64, WithStreams())
	gate, s := newGate(t, ctx), newStream(t, ctx)
	gate.hold(t, s)
	require.NoError(t, w.PublishOn(s, ok(w.AcquireOn(s))(t), Meta{}))
	r := ok(Open(soonFor(t, newestLimit*9/10), srv.Path(), "frames", ctx, WithJoin(Newest)))(t)
	gate.open()
	require.NoError(t, s.Synchronize(soon(t)))
	require.EqualValues(t, 2, r.First())
	require.NoError(t, r.Close())
}

// A reader that drops the newest and stands still leaves others of its kind their share.
func TestDropNewestIsShared(t *testing.T) {
	ctx, srv, w := newChannel(t, 8, 64)
	still, quick := newReader(t, ctx, srv, WithPolicy(DropNewest)), newReader(t, ctx, srv, WithPolicy(DropNewest))
	for n := uint64(1); n <= 50; n++ {
		put(t, ctx, w)
		require.NoError(t, quick.Release(requireFrame(t, ctx, quick, n)))
	}
	require.Zero(t, quick.Stats().Lost)
	require.NoError(t, w.Close())
	for n := uint64(1); n <= 2; n++ {
		require.NoError(t, still.Release(requireFrame(t, ctx, still, n)))
	}
	require.ErrorIs(t, errOf(still.Next(soon(t))), ErrEnded)
	require.ErrorIs(t, errOf(still.Next(soon(t))), ErrEnded)
	require.Equal(t, Stats{Received: 2, Lost: 48}, still.Stats(), "those at the end are lost, too, once")
}

// FAULT 95: cursors that are smaller than any are an error, and no end of the process.
func TestFault95_SmallCursors(t *testing.T) {
	ctx, srv := listening(t)
	w, err := NewWriter(soon(t), ctx, srv, "frames", 2, 64)
	require.NoError(t, err)
	defer w.Close()
	other := listen(t)
	_, err = other.Offer("frames", w.buf, &share.OfferOptions{CursorSize: 8, OnCursors: func(*share.Lease, *os.File) error { return nil }})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err = Open(soon(t), other.Path(), "frames", ctx)
		return errors.Is(err, ErrCursor)
	}, time.Minute, time.Millisecond, "%v", err)
	require.NoError(t, other.Close())
}

// FAULT 94: what a dead writer's device still writes (E1) makes no frame, and no nonsense.
func TestFault94_LateWritesOfADeadWriter(t *testing.T) {
	for _, streams := range []bool{false, true} {
		t.Run(fmt.Sprint("streams ", streams), func(t *testing.T) {
			ctx := cutest.Context(t, cutest.Device(t))
			path := t.TempDir() + "/s"
			c := start(t, "writer", task{Path: path, Slots: 4, Size: 4096, Frames: 10, StopAt: 3, Streams: streams})
			require.Equal(t, "listening", c.says(t))
			r := ok(Open(soon(t), path, "frames", ctx))(t)
			s := newStream(t, ctx)
			require.Equal(t, "within 3", c.says(t))
			var late Frame
			if streams {
				for range 3 {
					late = ok(r.NextOn(s))(t)
				}
			}
			c.kill()
			<-r.Done()
			r.store(offPublished, 3) // as its stream would have, had it gone on
			if streams {
				require.NoError(t, s.Synchronize(soon(t)), "it is freed once more if need be")
				require.ErrorIs(t, r.Check(late), ErrLost)
			} else {
				require.NoError(t, r.Release(requireFrame(t, ctx, r, 1)))
				require.NoError(t, r.Release(requireFrame(t, ctx, r, 2)))
			}
			_, err := r.Next(soon(t))
			var lost *WriterLostError
			require.ErrorAs(t, err, &lost)
			require.EqualValues(t, 2, lost.Last)
			require.NoError(t, r.Close())
		})
	}
}

// Attaching is refused by name if no device can reach the frames.
func TestNoPeer(t *testing.T) {
	if cutest.Kind() != cu.Soft {
		t.Skip("takes devices without peer access")
	}
	ctx, srv := listening(t)
	newWriter(t, ctx, srv, 2, 64)
	t.Setenv("GPUFD_SOFT_PEERS", "0")
	c := start(t, "far reader", task{Path: srv.Path()})
	require.Equal(t, "refused", c.says(t))
	c.end(t)
}

// childFarReader is a reader of the second device.
func childFarReader() error {
	do, near := childTask()
	far := testenv.Got(near.Device().Driver().Device(1))
	ctx := testenv.Got(far.PrimaryContext())
	wait, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := Open(wait, do.Path, "frames", ctx); !errors.Is(err, share.ErrNoPeer) {
		return fmt.Errorf("there is no peer access: %w", err)
	}
	fmt.Println("refused")
	return errors.Join(ctx.Close(), near.Close())
}

// The context of a writer is lost before its stream has published what it was given: readers
// are not told that this was all.
func TestWriterThatLosesItsContext(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	path := t.TempDir() + "/s"
	c := start(t, "lost writer", task{Path: path})
	require.Equal(t, "listening", c.says(t))
	r := ok(Open(soon(t), path, "frames", ctx))(t)
	require.Equal(t, "closed", c.says(t))
	<-r.Done()
	require.ErrorIs(t, r.Err(), ErrLost)
	require.ErrorIs(t, errOf(r.Next(soon(t))), ErrLost)
	require.NoError(t, r.Close())
}

// childLostWriter queues a frame behind work that fails.
func childLostWriter() error {
	do, ctx := childTask()
	srv := testenv.Got(share.Listen(do.Path, nil))
	w := testenv.Got(NewWriter(context.Background(), ctx, srv, "frames", 2, 64, WithStreams()))
	fmt.Println("listening")
	var t childTest
	own := newReader(&t, ctx, srv)
	testenv.Must(w.AwaitReaders(soon(&t), 2))
	s := newStream(&t, ctx)
	slot, err := w.AcquireOn(s)
	fail := failBehind(&t, ctx, s, own)
	testenv.Must(errors.Join(err, w.PublishOn(s, slot, Meta{}), fail()))
	_ = s.Synchronize(soon(&t))
	_ = w.Close()
	fmt.Println("closed")
	os.Exit(0)
	return nil
}

// failBehind makes s wait for fail, and then lose the context, before the work that s is given later.
func failBehind(t testing.TB, ctx *cu.Context, s *cu.Stream, r *Reader) (fail func() error) {
	word, other := testenv.Got(ctx.Alloc(8)), newStream(t, ctx)
	testenv.Must(errors.Join(cu.FillAsync(other, word.Ptr(), uint32(0), 1), other.Synchronize(soon(t)),
		s.WaitValue32(word.Ptr(), 1, cu.WaitEQ),
		s.WriteValue32(r.Attachment().Ptr(), 1, cu.WriteDefault))) // D20b: a reader's mapping may not be written
	return func() error { return other.WriteValue32(word.Ptr(), 1, cu.WriteDefault) }
}

// A writer does not wait for ever for a slot that its own stream was to write, if the stream's context is lost.
func TestAcquireBehindALostContext(t *testing.T) {
	require.Equal(t, "told", start(t, "waiting writer", task{Path: t.TempDir() + "/s"}).says(t))
}

// childWaitingWriter acquires the only slot while a stream has to write it behind work that fails.
func childWaitingWriter() error {
	do, ctx := childTask()
	srv := testenv.Got(share.Listen(do.Path, nil))
	w := testenv.Got(NewWriter(context.Background(), ctx, srv, "frames", 1, 64, WithAnyOrder()))
	var t childTest
	s := newStream(&t, ctx)
	fail := failBehind(&t, ctx, s, newReader(&t, ctx, srv))
	testenv.Must(errors.Join(w.PublishOn(s, testenv.Got(w.Acquire(soon(&t))), Meta{}), fail()))
	if _, err := w.Acquire(soon(&t)); !errors.Is(err, cu.ErrContextLost) {
		return err
	}
	fmt.Println("told")
	os.Exit(0)
	return nil
}
