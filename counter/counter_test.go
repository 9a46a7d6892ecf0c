package counter

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/vmm"
)

// Streams of two processes take turns by counters in memory that both have mapped.
func TestCounterOrdersProcesses(t *testing.T) { takeTurns(t, nil) }

// FAULTS 46, D18: also if one has PID, IPC, mount and network namespaces of its own.
func TestFault46_CounterBetweenNamespaces(t *testing.T) { takeTurns(t, cutest.Namespaced(t)) }

// takeTurns makes this process and a child, which the program front starts, take turns.
func takeTurns(t *testing.T, front []string) {
	ctx := cutest.Context(t, cutest.Device(t))
	buf := control(t, ctx)
	mine, theirs := counters(t, ctx, buf)
	s := newStream(t, ctx)
	peer := startPeer(t, buf, front)
	for n := uint64(1); n <= turns; n++ {
		require.NoError(t, theirs.Signal(s, n))
		require.NoError(t, ok(mine.Wait(soon(t), s, n))(t).Result())
	}
	require.NoError(t, peer.Wait())
}

// FAULTS 18: a stream that waits for a peer which was killed is freed at the
// deadline, whoever asks is told, and all can be closed.
func TestFault18_CounterOfAKilledPeer(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	buf := control(t, ctx)
	mine, theirs := counters(t, ctx, buf)
	s := newStream(t, ctx)
	peer := startPeer(t, buf, nil)
	require.NoError(t, theirs.Signal(s, 1))
	require.NoError(t, mine.Await(soon(t), 1), "the peer is there")
	limited, cancel := context.WithCancelCause(t.Context())
	w := ok(mine.Wait(limited, s, 2))(t)
	require.NoError(t, peer.Process.Kill())
	require.Error(t, peer.Wait())
	gone := errors.New("the peer is gone")
	cancel(gone)
	require.ErrorIs(t, w.Result(), cu.ErrGivenUp)
	require.NotContains(t, w.Result().Error(), "waits still")
	require.NoError(t, s.Synchronize(soon(t)))
	require.ErrorIs(t, mine.Signal(s, 2), gone)
	require.ErrorIs(t, errOf(mine.Wait(soon(t), s, 2)), cu.ErrGivenUp)
	require.NoError(t, theirs.Signal(s, 2), "the other slot is as it was")
	require.NoError(t, s.Synchronize(soon(t)))
}

// A context that has ended already breaks nothing, in a stream or on the host.
func TestCounterWaitThatIsOverBeforeItBegins(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	mine, _ := counters(t, ctx, control(t, ctx))
	s := newStream(t, ctx)
	over, cancel := context.WithCancelCause(t.Context())
	late := errors.New("too late")
	cancel(late)
	for _, err := range []error{errOf(mine.Wait(over, s, 1)), mine.Await(over, 1)} {
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, late)
	}
	require.NoError(t, mine.Signal(s, 1))
	require.NoError(t, errors.Join(ok(mine.Wait(soon(t), s, 1))(t).Result(), mine.Await(soon(t), 1)))
	require.ErrorIs(t, mine.Await(over, 1), late, "it is there, and nobody wants to know")
}

// Memory that could not be written, or is not there, makes no counter.
func TestCounterRefusals(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	buf := control(t, ctx)
	for _, slot := range []int{-1, slots, 1<<57 - 1, math.MaxInt} {
		require.ErrorContains(t, errOf(New(ctx, buf, slot)), "has room for")
	}
	ro := ok(vmm.New(ctx.Device(), Stride, vmm.WithAccess(cu.ReadOnly)))(t)
	require.ErrorContains(t, errOf(New(ctx, ro, 0)), "read-only")
	require.ErrorIs(t, errOf(New(nil, ro, 0)), vmm.ErrNil)
	require.NoError(t, ro.Close())
	require.ErrorIs(t, errOf(New(ctx, nil, 0)), vmm.ErrNil, "as of an attachment to legacy memory")
	var none *Counter
	require.NoError(t, none.Close())
	require.ErrorIs(t, none.Signal(nil, 1), cu.ErrClosed)
	require.ErrorIs(t, errOf(none.Wait(soon(t), nil, 1)), cu.ErrClosed)
}

// Streams of two devices take turns by a counter in the memory of one. A signal of the other's
// that is queued still keeps the memory, and one behind a wait that is given up counts for nothing.
//
//fault:rows 79 90
func TestCounterOfTwoDevices(t *testing.T) {
	a, b := cutest.TwoDevices(t, cutest.Driver(t))
	can := ok(b.CanAccessPeer(a))(t)
	testenv.Need(t, testenv.TwoGPUs, can, "they do not reach each other")
	here, there := cutest.Context(t, a), cutest.Context(t, b)
	buf := control(t, here)
	d, files, err := buf.Export()
	require.NoError(t, err)
	mapped := ok(vmm.Import(a, d, files, vmm.WithAccess(cu.ReadWrite), vmm.WithPeers(b)))(t)
	require.NoError(t, files[0].Close())
	t.Cleanup(func() { require.NoError(t, mapped.Close()) })
	s, peers := newStream(t, here), newStream(t, there)
	mine, theirs, last := counterAt(t, here, buf, 0), counterAt(t, there, mapped, 1), counterAt(t, there, mapped, 2)
	minesPeer, theirsPeer, lastsPeer := counterAt(t, there, mapped, 0), counterAt(t, here, buf, 1), counterAt(t, here, buf, 2)
	last.limit = briefly
	for n := range uint64(20) {
		there := ok(theirs.Wait(soon(t), peers, 1+n))(t)
		require.NoError(t, minesPeer.Signal(peers, 1+n))
		require.NoError(t, theirsPeer.Signal(s, 1+n))
		here := ok(mine.Wait(soon(t), s, 1+n))(t)
		require.NoError(t, errors.Join(there.Result(), here.Result()))
	}

	limited, cancel := context.WithCancel(t.Context())
	w := ok(theirs.Wait(limited, peers, 21))(t)
	require.NoError(t, last.Signal(peers, 1))
	require.ErrorIs(t, last.Close(), vmm.ErrInUse)
	require.ErrorIs(t, mapped.Close(), vmm.ErrInUse)
	awaited := ok(lastsPeer.Wait(soon(t), s, 1))(t)
	cancel()
	require.ErrorIs(t, w.Result(), cu.ErrGivenUp)
	require.ErrorIs(t, awaited.Result(), cu.ErrGivenUp)
	require.ErrorIs(t, lastsPeer.Await(soon(t), 1), cu.ErrGivenUp)
	last.limit = closeLimit
	requireWell(t, here)
	requireWell(t, there)
}

// Invariant 10, of signals: they allocate no more than the two driver calls that they are
// made of, which set the context by a callback here. These are libc's pthread_getconcurrency: C
// that takes what it is given, does nothing and returns 0, so that what is measured is ours.
func TestSignalDoesNotAllocate(t *testing.T) {
	if cutest.Kind() != cu.Soft {
		t.Skip("nothing of it reaches the driver")
	}
	libc := ok(sys.OpenFile("libc.so.6"))(t)
	drv := ok(cu.Open(cu.WithResolver(func(symbol string) (uintptr, error) {
		switch symbol {
		case "cuStreamWriteValue64_v2", "cuEventRecord":
			return libc("pthread_getconcurrency")
		}
		return soft.Resolver(symbol)
	})))(t)
	ctx := cutest.Context(t, ok(drv.Device(0))(t))
	c, s := counterAt(t, ctx, control(t, ctx), parentSlot), newStream(t, ctx)
	e := ok(ctx.NewEvent(cu.EventDisableTiming))(t)
	require.NoError(t, c.Signal(s, 1))
	calls := testing.AllocsPerRun(200, func() { _, _ = s.WriteValue64(c.word, 1, cu.WriteDefault), e.Record(s) })
	n := uint64(1)
	require.Equal(t, calls, testing.AllocsPerRun(200, func() { n++; _ = c.Signal(s, n) }))
	require.NoError(t, e.Close())
}
