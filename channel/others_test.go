package channel

import (
	"context"
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

// requireOthersWork says that Close has refused, and did not take as long as Close of memory would.
func requireOthersWork(t testing.TB, close func() error) {
	t.Helper()
	begin := time.Now()
	err := close()
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorIs(t, err, errOthersWork)
	require.ErrorContains(t, err, "channel: streams of others still have work: call Close again")
	require.Less(t, time.Since(begin), 8*time.Second)
}

// A side is closed while a stream that has nothing to do with it waits: Close says so, until that has gone on.
func TestCloseBesideWorkOfOthers(t *testing.T) {
	gone := make(chan Gone, 2)
	ctx, srv := listening(t)
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
			require.ErrorIs(t, err, errOthersWork)
			require.ErrorIs(t, err, cu.ErrStreamCaptureUnsupported)
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
	ctx, srv := listening(t)
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
	ctx, srv := listening(t)
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

// The driver cannot unregister a cursor: it stays mapped, however often it is closed.
func TestCursorThatStaysRegistered(t *testing.T) {
	faults := cutest.NewFaults(t)
	ctx := cutest.Context(t, cutest.Device(t, faults.Option()))
	f := os.NewFile(uintptr(ok(unix.MemfdCreate("cursors", unix.MFD_CLOEXEC))(t)), "cursors")
	defer f.Close()
	require.NoError(t, f.Truncate(minCursorSize))
	c := ok(openCursor(ctx, f, minCursorSize))(t)
	b := c.b
	failing := faults.Fail("cuMemHostUnregister", cu.ErrUnknown)
	require.ErrorIs(t, c.close(), cu.ErrUnknown)
	failing.Stop()
	require.NoError(t, c.close())
	words{b}.load(offPublished) // which faults if it is not mapped
	require.NoError(t, unix.Munmap(b))
}

// Follow waits for the work of others before it goes on, and says so.
func TestFollowBesideWorkOfOthers(t *testing.T) {
	ctx, srv := listening(t)
	newWriter(t, ctx, srv, 2, 64)
	x := newStranger(t, ctx)
	wait, cancel := context.WithCancel(soon(t))
	defer cancel()
	var told []error
	var first *Reader
	err := followUntil(wait, ctx, srv, func(r *Reader) {
		first = r
	}, WithAttach(share.AttachOptions{OnWait: func(err error) {
		told = append(told, err)
		x.free()
		go func() {
			defer cancel()
			for wait.Err() == nil && first.reg.Ptr() != 0 {
				time.Sleep(pollMax)
			}
		}()
	}}))
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, errOthersWork)
	require.Len(t, told, 1)
	require.ErrorIs(t, told[0], errOthersWork)
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
			require.ErrorIs(t, last, errOthersWork)
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

// A writer's stream in the same process waits for a reader that is being closed, which is work of others for that reader.
// The writer's Close drops the reader, so that both can be closed.
func TestReaderClosedBesideItsWritersStream(t *testing.T) {
	ctx, w, r := newPair(t, 2, 64, WithStreams())
	s := newStream(t, ctx)
	for range 2 {
		require.NoError(t, emptyOn(w, s))
	}
	require.NoError(t, errOf(w.AcquireOn(s)))
	requireOthersWork(t, r.Close)
	require.NoError(t, w.Close())
	require.NoError(t, r.Close())
}
