package channel

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/share"
)

// A stranger is a stream that a channel does not know, and that waits for free.
type stranger struct {
	t    testing.TB
	s    *cu.Stream
	word words
	at   cu.DevicePtr
}

func newStranger(t testing.TB, ctx *cu.Context) *stranger {
	t.Helper()
	mem := ok(ctx.AllocHost(pageSize, 0))(t)
	x := &stranger{t: t, word: words{mem.Bytes()}, at: mem.Ptr()}
	t.Cleanup(func() { require.NoError(t, mem.Close()) })
	x.s = newStream(t, ctx)
	t.Cleanup(func() { x.word.store(0, 1) }) // else the stream still waits if the test has failed
	x.wait()
	return x
}

func (x *stranger) wait() {
	x.word.store(0, 0)
	require.NoError(x.t, x.s.BatchMemOps(cu.WaitOp64(x.at, 1, cu.WaitGEQ)))
}

// free returns when the stream has nothing to do any more.
func (x *stranger) free() {
	x.word.store(0, 1)
	require.NoError(x.t, x.s.Synchronize(soon(x.t)))
}

// listeningSlowly is listening with a driver whose own Close of memory waits longer than any test.
func listeningSlowly(t testing.TB) (*cu.Context, *share.Server) {
	t.Helper()
	return cutest.Context(t, cutest.Device(t, cu.WithCloseLimit(10*time.Minute))), listen(t)
}

// requireOthersWork requires that Close refuses because of a stream that waits. On a driver of listeningSlowly that
// is not Close of memory, which would take longer than ends waits.
func requireOthersWork(t *testing.T, close func() error) {
	t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- close() }()
	err := ends(t, closed)
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, "channel: its memory is not closed: after ")
}

// A side is closed while a stream that has nothing to do with it waits: Close says so, until that has gone on.
func TestCloseBesideWorkOfOthers(t *testing.T) {
	gone := make(chan Gone, 2)
	ctx, srv := listeningSlowly(t)
	w := newWriter(t, ctx, srv, 2, 64, OnGone(func(g Gone) { gone <- g }))
	r := newReader(t, ctx, srv)
	x := newStranger(t, ctx)

	requireOthersWork(t, r.Close)
	requireOthersWork(t, r.Close)
	require.ErrorIs(t, r.Err(), ErrClosed)
	require.NotZero(t, r.att.Ptr(), "the memory is kept")
	require.NotZero(t, r.reg.Ptr())
	require.NoError(t, r.att.Err(), "and the lease")
	x.free()
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	require.Zero(t, r.att.Ptr())
	require.Zero(t, r.reg.Ptr())
	require.NoError(t, (<-gone).Err)

	r = newReader(t, ctx, srv)
	m := w.members(t)[0]
	x.wait()
	requireOthersWork(t, w.Close)
	require.NoError(t, (<-gone).Err, "it has got its end")
	<-r.Done()
	require.ErrorIs(t, r.Err(), ErrEnded)
	requireOthersWork(t, w.Close)
	require.NotZero(t, w.buf.Ptr())
	require.NotZero(t, m.reg.Ptr())
	require.NotNil(t, m.b)
	x.free()
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	require.Zero(t, w.buf.Ptr())
	require.Zero(t, m.reg.Ptr())
	require.Nil(t, m.b)
}

// members are the readers that have joined.
func (w *Writer) members(t testing.TB) []*member {
	require.NoError(t, w.AwaitReaders(soon(t), 1))
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*member(nil), w.readers...)
}

func (w *Writer) dropOne(m *member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(m, writerDropped, ErrStalled)
}

// During a capture Close returns at once, and the capture is not harmed.
func TestCloseDuringACaptureOfOthers(t *testing.T) {
	ctx, w, r := newPair(t, 2, 64)
	s := newStream(t, ctx)
	graph, err := s.Capture(func() error {
		for _, end := range []func() error{r.Close, w.Close} {
			err := end()
			require.ErrorIs(t, err, ErrInUse)
			require.ErrorIs(t, err, cu.ErrStreamCaptureUnsupported)
			require.ErrorContains(t, err, "channel: its memory is not closed, because a stream is being captured")
		}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, graph.Close())
	require.NoError(t, r.Close())
	require.NoError(t, w.Close())
}

// A reader is dropped while the writer's process has other work: its host tells at once, and closes its cursor when that is over.
func TestReaderGoneBesideWorkOfOthers(t *testing.T) {
	gone := make(chan Gone, 1)
	ctx, srv := listeningSlowly(t)
	w := newWriter(t, ctx, srv, 2, 64, OnGone(func(g Gone) { gone <- g }))
	newReader(t, ctx, srv)
	m := w.members(t)[0]
	x := newStranger(t, ctx)
	w.dropOne(m)
	require.ErrorIs(t, (<-gone).Err, ErrStalled)
	require.NotZero(t, m.reg.Ptr())
	x.free()
	select {
	case <-begin(w.guests.Wait):
	case <-soon(t).Done():
		require.FailNow(t, "the host does not end")
	}
	require.Zero(t, m.reg.Ptr())
	require.Nil(t, m.b)
	require.Empty(t, w.unclosed)
	require.NoError(t, w.Close())
}

// The writer is closed while a host still waits to close its cursor: that is closed before the context.
func TestCloseWhileAHostWaitsForOthers(t *testing.T) {
	gone := make(chan Gone, 1)
	ctx, srv := listeningSlowly(t)
	w := newWriter(t, ctx, srv, 2, 64, OnGone(func(g Gone) { gone <- g }))
	newReader(t, ctx, srv)
	m := w.members(t)[0]
	x := newStranger(t, ctx)
	w.dropOne(m)
	require.ErrorIs(t, (<-gone).Err, ErrStalled)
	requireOthersWork(t, w.Close)
	require.Equal(t, []*member{m}, w.unclosed)
	require.NotNil(t, m.b)
	x.free()
	require.NoError(t, w.Close())
	require.Zero(t, m.reg.Ptr())
	require.Nil(t, m.b)
}

// Close of the writer does not wait for ever for a function of OnGone.
func TestCloseBesideOnGone(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 5 s")
	}
	hold := make(chan struct{})
	ctx, srv := listening(t)
	w := newWriter(t, ctx, srv, 2, 64, OnGone(func(Gone) { <-hold }))
	require.NoError(t, newReader(t, ctx, srv).Close())
	closed := make(chan error, 1)
	go func() { closed <- w.Close() }()
	err := ends(t, closed)
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, "a function of OnGone has not returned")
	close(hold)
	require.NoError(t, w.Close())
}

// A reader that the writer refuses leaves nothing, though the caller has nothing to close.
func TestRefusedBesideWorkOfOthers(t *testing.T) {
	var pinned atomic.Int64
	change := map[string]int64{"cuMemHostAlloc": 1, "cuMemFreeHost": -1, "cuMemHostRegister_v2": 1, "cuMemHostUnregister": -1}
	ctx := cutest.Context(t, cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		r := next()
		if r == sys.CUDA_SUCCESS {
			pinned.Add(change[call.Symbol()])
		}
		return r
	})))
	srv := listen(t)
	newWriter(t, ctx, srv, 2, 64, WithReaders(1))
	before := pinned.Load()
	r := newReader(t, ctx, srv)
	x := newStranger(t, ctx)
	require.ErrorIs(t, errOf(Open(soon(t), srv.Path(), "frames", ctx)), ErrPolicy)
	x.free()
	require.NoError(t, r.Close())
	const stranger = 1 // page
	require.Eventually(t, func() bool { return pinned.Load() == before+stranger }, 30*time.Second, time.Millisecond)
}

// The driver says that it cannot unregister a cursor, though it does, lest later tests be given the same addresses: the
// cursor stays mapped, however often it is closed.
func TestCursorThatStaysRegistered(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		r := next()
		if call.Symbol() == "cuMemHostUnregister" {
			r = sys.CUDA_ERROR_UNKNOWN
		}
		return r
	})))
	f := os.NewFile(uintptr(ok(unix.MemfdCreate("cursors", unix.MFD_CLOEXEC))(t)), "cursors")
	defer f.Close()
	require.NoError(t, f.Truncate(minCursorSize))
	c := ok(openCursor(ctx, f, minCursorSize))(t)
	b := c.b
	require.ErrorIs(t, c.close(), cu.ErrUnknown)
	require.NoError(t, c.close())
	words{b}.load(offPublished) // which faults if it is not mapped
	require.NoError(t, unix.Munmap(b))
}

// Follow waits for the work of others before it goes on, and says so.
func TestFollowBesideWorkOfOthers(t *testing.T) {
	ctx, srv := listeningSlowly(t)
	newWriter(t, ctx, srv, 2, 64)
	x := newStranger(t, ctx)
	wait, cancel := context.WithCancel(soon(t))
	defer cancel()
	var told []error
	var first *Reader
	err := followUntil(wait, ctx, srv, func(r *Reader) {
		if first == nil {
			first = r
		}
	}, WithAttach(share.AttachOptions{OnWait: func(err error) {
		if !errors.Is(err, ErrInUse) { // the writer is slow
			return
		}
		if told = append(told, err); len(told) > 1 {
			return
		}
		x.free()
		go func() {
			defer cancel()
			for wait.Err() == nil && first.reg.Ptr() != 0 {
				time.Sleep(pollMax)
			}
		}()
	}}))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrInUse)
	require.NotEmpty(t, told)
	require.ErrorContains(t, told[0], "the reader of the writer before cannot be closed yet: channel: its memory is not closed")
	require.Zero(t, first.reg.Ptr())
}

// followUntil calls body for each reader, and returns the error that ends the loop.
func followUntil(wait context.Context, ctx *cu.Context, srv *share.Server, body func(*Reader), opts ...ReaderOption) (last error) {
	for r, err := range Follow(wait, srv.Path(), "frames", ctx, opts...) {
		if last = err; err == nil {
			body(r)
		}
	}
	return last
}

// Once its context has ended, Follow says that a reader could not be closed. That may be closed then.
func TestFollowEndsBesideWorkOfOthers(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t, cu.WithCloseLimit(10*time.Millisecond)))
	srv := listen(t)
	newWriter(t, ctx, srv, 2, 64)
	for _, breaks := range []bool{false, true} {
		x := newStranger(t, ctx)
		wait, cancel := context.WithCancel(soon(t))
		defer cancel()
		var lent *Reader
		var last error
		for r, err := range Follow(wait, srv.Path(), "frames", ctx) {
			if last = err; err != nil {
				continue
			}
			lent = r
			cancel()
			if breaks {
				break
			}
		}
		if !breaks {
			require.ErrorIs(t, last, ErrInUse)
			require.ErrorIs(t, last, context.Canceled)
		}
		requireOthersWork(t, lent.Close)
		require.NotZero(t, lent.reg.Ptr())
		x.free()
		require.NoError(t, lent.Close())
		require.Zero(t, lent.reg.Ptr())
		require.NoError(t, lent.att.Close())
		require.Zero(t, lent.att.Ptr())
	}
}

// A body that breaks out of Follow, or panics, does not wait for the work of others: Close is called once.
func TestFollowIsLeftBesideWorkOfOthers(t *testing.T) {
	ctx, srv := listeningSlowly(t)
	newWriter(t, ctx, srv, 2, 64)
	for _, leave := range []func(*Reader, error) bool{
		func(*Reader, error) bool { return false },
		func(*Reader, error) bool { panic("in the body") },
	} {
		r := newReader(t, ctx, srv)
		x := newStranger(t, ctx)
		left := make(chan error, 1)
		go func() {
			defer func() {
				if recover() != nil {
					left <- nil
				}
			}()
			more, err := r.lend(context.Background(), leave)
			if more {
				err = errors.New("the loop goes on")
			}
			left <- err
		}()
		if err := ends(t, left); err != nil {
			require.ErrorIs(t, err, ErrInUse)
		}
		require.ErrorIs(t, r.Err(), ErrClosed)
		requireOthersWork(t, r.Close)
		x.free()
		require.NoError(t, r.Close())
	}
}

// A reader has left, and cannot free its memory because of the work of others: the writer does not wait for it.
func TestReaderThatLeftKeepsNobodyWaiting(t *testing.T) {
	for _, streams := range []bool{false, true} {
		name, opts := "by hosts", []WriterOption(nil)
		if streams {
			name, opts = "by streams", []WriterOption{WithStreams()}
		}
		t.Run(name, func(t *testing.T) {
			gone := make(chan Gone, 2)
			ctx, srv := listeningSlowly(t)
			w := newWriter(t, ctx, srv, 2, 64, append(opts, OnGone(func(g Gone) { gone <- g }))...)
			r := newReader(t, ctx, srv)
			s, x := newStream(t, ctx), newStranger(t, ctx)
			publish := func() {
				require.NoError(t, w.Publish(ok(w.Acquire(soon(t)))(t), Meta{}))
			}
			if streams {
				publish = func() { require.NoError(t, emptyOn(w, s)) }
			}
			for range 2 {
				publish()
			}
			requireOthersWork(t, r.Close)
			for range 5 {
				publish()
			}
			require.NoError(t, s.Synchronize(soon(t)))
			select {
			case g := <-gone:
				require.NoError(t, g.Err, "it has left in order")
			case <-soon(t).Done():
				require.FailNow(t, "the writer does not say that the reader is gone")
			}
			require.NoError(t, r.att.Err(), "the lease is kept")
			x.free()
			require.NoError(t, r.Close())
			require.NoError(t, w.Close())
			require.Empty(t, gone, "it is said once")
		})
	}
}

// The driver does not say whether streams have work: Close says so, and that is not ErrInUse.
func TestCloseWhenTheDriverCannotSay(t *testing.T) {
	gone := make(chan Gone, 1)
	faults := cutest.NewFaults(t)
	ctx, srv := cutest.Context(t, cutest.Device(t, faults.Option())), listen(t)
	w := newWriter(t, ctx, srv, 2, 64, OnGone(func(g Gone) { gone <- g }))
	r := newReader(t, ctx, srv)
	m := w.members(t)[0]
	failing := faults.Fail("cuStreamQuery", cu.ErrUnknown)
	for _, end := range []func() error{r.Close, func() error { return r.closeUntil(context.Background()) }} {
		err := end()
		require.ErrorIs(t, err, cu.ErrUnknown)
		require.NotErrorIs(t, err, ErrInUse)
		require.ErrorContains(t, err, "channel: its memory is not closed: it is not known whether streams use it")
	}
	require.ErrorIs(t, (<-gone).Err, cu.ErrUnknown)
	require.ErrorIs(t, w.Close(), cu.ErrUnknown)
	failing.Stop()
	require.NoError(t, r.Close())
	require.NoError(t, w.Close())
	require.True(t, m.b == nil, "the writer has closed what the host could not")
}

// A writer's stream in the same process waits for a reader that is being closed, which is work of others for that reader.
// The writer frees the stream once the reader has left, so that both can be closed.
func TestReaderClosedBesideItsWritersStream(t *testing.T) {
	ctx, w, r := newPair(t, 2, 64, WithStreams())
	s := newStream(t, ctx)
	for range 2 {
		require.NoError(t, emptyOn(w, s))
	}
	require.NoError(t, errOf(w.AcquireOn(s)))
	require.NoError(t, r.closeUntil(soon(t))) // a first Close may be too early
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, w.Close())
}
