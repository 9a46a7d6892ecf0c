package cu_test

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// A waiting is a stream that waits for words of its own.
type waiting struct {
	t         *testing.T
	s, helper *cu.Stream
	words     *cu.Memory
}

func newWaiting(t *testing.T, ctx *cu.Context) *waiting {
	t.Helper()
	words, err := ctx.Alloc(64)
	require.NoError(t, err)
	require.NoError(t, cu.Fill(ctx, words.Ptr(), uint8(0), 64))
	require.NoError(t, ctx.Synchronize(soon(t)))
	w := &waiting{t, newStream(t, ctx), newStream(t, ctx), words}
	t.Cleanup(func() {
		require.NoError(t, errors.Join(w.s.Synchronize(soon(t)), w.helper.Synchronize(soon(t)), words.Close()))
	})
	return w
}

// write sets a word.
func (w *waiting) write(word uint64, n uint32) error {
	return w.helper.WriteValue32(w.words.Ptr().Add(4*word), n, cu.WriteDefault)
}

// guard has the stream wait until a word is n; freed it is n, too.
func (w *waiting) guard(ctx context.Context, word uint64, n uint32, also ...func()) *cu.StreamWait {
	w.t.Helper()
	begin := func() error {
		err := w.s.WaitValue32(w.words.Ptr().Add(4*word), n, cu.WaitGEQ)
		for _, f := range also {
			f()
		}
		return err
	}
	g, err := w.s.Guard(ctx, begin, func() error { return nil }, func() error { return w.write(word, n) })
	require.NoError(w.t, err)
	return g
}

// watchers counts the goroutines that watch waits.
func watchers(t *testing.T) int {
	t.Helper()
	stacks := make([]byte, 8<<20)
	n := runtime.Stack(stacks, true)
	require.Less(t, n, len(stacks), "there is no room for all stacks")
	return bytes.Count(stacks[:n], []byte("created by github.com/gpufd/gpufd/cu.(*guards).add"))
}

// A thousand waits of a stream take one goroutine, which asks for the first alone.
func TestManyWaitsTakeOneGoroutine(t *testing.T) {
	const many = 1000
	var asked atomic.Int64
	drv := cutest.Driver(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		if call.Symbol() == "cuEventQuery" {
			asked.Add(1)
		}
		return next()
	}))
	w := newWaiting(t, cutest.Context(t, firstDevice(t, drv)))
	waits := make([]*cu.StreamWait, many)
	for i := range waits {
		waits[i] = w.guard(soon(t), 0, uint32(i+1))
	}
	require.Equal(t, 1, watchers(t), "goroutines that watch the stream's waits")
	for n := uint32(many / 10); n <= many; n += many / 10 {
		require.NoError(t, w.write(0, n))
		require.NoError(t, waits[n-1].Result())
	}
	for _, g := range waits {
		require.NoError(t, g.Result())
	}
	require.Less(t, int(asked.Load()), 20*many, "each would take 65 of its own")
}

// Nothing behind a wait that was given up can be relied on: the waits queued there report it,
// though they are met, and later ones do not.
func TestWaitsBehindOneThatIsGivenUp(t *testing.T) {
	w := newWaiting(t, cutest.Context(t, cutest.Device(t)))
	limited, cancel := context.WithCancelCause(t.Context())
	first := w.guard(soon(t), 0, 1)
	second := w.guard(limited, 1, 1)
	third := w.guard(soon(t), 2, 1)
	require.NoError(t, w.write(2, 1))
	gone := errors.New("the peer is gone")
	cancel(gone)
	require.NoError(t, w.write(0, 1))
	require.NoError(t, first.Result(), "it is before that")
	require.ErrorIs(t, second.Result(), cu.ErrGivenUp)
	require.ErrorIs(t, third.Result(), cu.ErrGivenUp)
	require.ErrorIs(t, third.Result(), gone)
	require.ErrorContains(t, third.Result(), "a wait before this one, on the same stream: ")
	require.NoError(t, w.guard(soon(t), 2, 1).Result())
}

// A wait that is queued while one before it is given up is behind it.
func TestWaitQueuedWhileOneIsGivenUp(t *testing.T) {
	w := newWaiting(t, cutest.Context(t, cutest.Device(t)))
	limited, cancel := context.WithCancel(t.Context())
	first := w.guard(limited, 0, 1)
	require.NoError(t, w.write(1, 1))
	second := w.guard(soon(t), 1, 1, func() {
		cancel()
		require.ErrorIs(t, first.Result(), cu.ErrGivenUp)
	})
	require.ErrorIs(t, second.Result(), cu.ErrGivenUp)
}

// A wait is behind one that is given up until that is over: also while the stream is
// being freed.
func TestWaitQueuedWhileTheStreamIsFreed(t *testing.T) {
	w := newWaiting(t, cutest.Context(t, cutest.Device(t)))
	require.NoError(t, w.write(1, 1))
	limited, cancel := context.WithCancel(t.Context())
	freeing, queued := make(chan struct{}), make(chan struct{})
	var once sync.Once
	begin := func() error { return w.s.WaitValue32(w.words.Ptr(), 1, cu.WaitGEQ) }
	free := func() error {
		once.Do(func() { close(freeing) })
		<-queued
		return errors.Join(w.write(0, 1), w.s.Synchronize(soon(t))) // past both waits
	}
	first, err := w.s.Guard(limited, begin, func() error { return nil }, free)
	require.NoError(t, err)
	cancel()
	<-freeing
	second := w.guard(soon(t), 1, 1)
	close(queued)
	require.ErrorIs(t, first.Result(), cu.ErrGivenUp)
	require.ErrorIs(t, second.Result(), cu.ErrGivenUp)
	require.NoError(t, w.guard(soon(t), 1, 1).Result(), "it was queued when those were over")
}

// A stream that cannot be freed keeps its context, and nobody who asks for the result.
func TestStreamThatCannotBeFreed(t *testing.T) {
	ended := make(chan struct{})
	dev := cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		if call.Symbol() == "cuCtxDestroy_v2" {
			defer close(ended)
		}
		return next()
	}))
	word, err := cutest.Context(t, dev).AllocHost(64, cu.HostPortable)
	require.NoError(t, err)
	defer func() { require.NoError(t, word.Close()) }()
	values, err := cu.HostSlice[uint32](word)
	require.NoError(t, err)
	at := word.Ptr()
	values[0] = 0
	ctx, err := dev.NewContext(cu.SchedAuto)
	require.NoError(t, err)
	s, err := ctx.NewStream()
	require.NoError(t, err)
	limited, cancel := context.WithCancel(t.Context())
	why := errors.New("no way to free it")
	g, err := s.Guard(limited, func() error { return s.WaitValue32(at, 1, cu.WaitGEQ) },
		func() error { return nil }, func() error { return why })
	require.NoError(t, err)
	require.NoError(t, ctx.Close())
	defer func() {
		atomic.StoreUint32(&values[0], 1)
		<-ended
	}()
	cancel()
	select {
	case <-g.Done():
	case <-soon(t).Done():
		t.Fatal("the result waits for the context")
	}
	require.ErrorIs(t, g.Result(), cu.ErrGivenUp)
	require.ErrorIs(t, g.Result(), why)
}

// If met says that somebody else freed the stream, the waits queued behind it report that, and
// their callbacks run.
func TestWaitsBehindOneThatAnotherHasFreed(t *testing.T) {
	w := newWaiting(t, cutest.Context(t, cutest.Device(t)))
	another := errors.New("another has freed it")
	begin := func() error { return w.s.WaitValue32(w.words.Ptr(), 1, cu.WaitGEQ) }
	first, err := w.s.Guard(soon(t), begin, func() error { return another }, func() error { return nil })
	require.NoError(t, err)
	second := w.guard(soon(t), 1, 1)
	told := make(chan error, 1)
	require.NoError(t, w.s.IfGivenUp(t, func(why error) { told <- why }))
	require.NoError(t, errors.Join(w.write(1, 1), w.write(0, 1)))
	require.ErrorIs(t, first.Result(), another)
	require.ErrorIs(t, second.Result(), cu.ErrGivenUp)
	require.ErrorIs(t, second.Result(), another)
	require.ErrorIs(t, <-told, another)
	require.NoError(t, w.s.IfGivenUp(t, func(error) { t.Error("the stream has no wait") }))
	require.NoError(t, w.guard(soon(t), 1, 1).Result())
}

// Work queued after a given-up wait has ended still counts as behind it, until its result was
// asked for.
func TestWaitsBehindOneThatNobodyHasAskedFor(t *testing.T) {
	w := newWaiting(t, cutest.Context(t, cutest.Device(t)))
	limited, cancel := context.WithCancel(t.Context())
	first := w.guard(limited, 0, 1)
	second := w.guard(soon(t), 1, 1)
	cancel()
	require.NoError(t, w.write(1, 1))
	<-second.Done()
	none := func(error) { t.Error("the stream has no wait") }
	require.ErrorIs(t, w.s.IfGivenUp(t, none), context.Canceled)
	third := w.guard(soon(t), 1, 1)
	<-third.Done()
	require.ErrorIs(t, w.s.IfGivenUp(t, none), context.Canceled)
	require.ErrorIs(t, third.Result(), cu.ErrGivenUp)
	require.NoError(t, w.s.IfGivenUp(t, none), "that is known")
	require.NoError(t, w.guard(soon(t), 1, 1).Result())

	limited, cancel = context.WithCancel(t.Context())
	last := w.guard(limited, 2, 1)
	cancel()
	<-last.Done()
	require.ErrorIs(t, first.Result(), cu.ErrGivenUp)
	require.ErrorIs(t, w.s.IfGivenUp(t, none), context.Canceled, "the first was another")
	require.ErrorIs(t, last.Result(), cu.ErrGivenUp)
	require.NoError(t, w.s.IfGivenUp(t, none))
}

// Before several streams that wait for one value are freed, the waits behind are told.
func TestDistrust(t *testing.T) {
	w := newWaiting(t, cutest.Context(t, cutest.Device(t)))
	why := errors.New("given up elsewhere")
	before := w.guard(soon(t), 0, 1)
	first, second := w.guard(soon(t), 1, 1), w.guard(soon(t), 2, 1)
	told := make(chan error, 2)
	require.NoError(t, w.s.IfGivenUp(t, func(err error) { told <- err }))
	first.Distrust(why)
	require.Equal(t, why, <-told)
	require.NoError(t, w.s.IfGivenUp(t, func(err error) { told <- err }))
	require.Equal(t, why, <-told, "at once")
	third := w.guard(soon(t), 3, 1)
	require.NoError(t, w.s.IfGivenUp(t, func(err error) { told <- err }))
	require.Equal(t, why, <-told, "behind it, too")
	for word := range uint64(4) {
		require.NoError(t, w.write(word, 1))
	}
	for _, g := range []*cu.StreamWait{before, first, second, third} {
		require.NoError(t, g.Result(), "met says what it was")
	}
	first.Distrust(why)
	(*cu.StreamWait)(nil).Distrust(why)
	new(cu.StreamWait).Distrust(why)
	require.NoError(t, w.s.IfGivenUp(t, func(error) { t.Error("the stream has no wait") }))
}
