package share

import (
	"context"
	"errors"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// The slots of the tests: where each side waits.
const (
	parentSlot = iota
	childSlot
	slots
)

// control is a chunk for the counters, of zeros, closed when t ends.
func control(t testing.TB, ctx *cu.Context) *vmm.Buffer {
	t.Helper()
	buf := ok(vmm.New(ctx.Device(), slots*CounterStride))(t)
	t.Cleanup(func() { require.NoError(t, buf.Close()) })
	require.NoError(t, cu.Fill(ctx, buf.Ptr(), uint8(0), buf.Size()))
	require.NoError(t, ctx.Synchronize(soon(t)))
	return buf
}

// counters are both counters of a control chunk, closed when t ends.
func counters(t testing.TB, ctx *cu.Context, buf *vmm.Buffer) (mine, theirs *Counter) {
	t.Helper()
	for slot, c := range map[int]**Counter{parentSlot: &mine, childSlot: &theirs} {
		var err error
		*c, err = NewCounter(ctx, buf, slot)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, (*c).Close()) })
	}
	return mine, theirs
}

// childCounter attaches to the control chunk, and answers rounds of turns, or
// none.
func childCounter() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	att, err := Attach(context.Background(), os.Getenv(pathEnv), "control", dev, &AttachOptions{Access: cu.ReadWrite})
	if err != nil {
		return err
	}
	s, err := ctx.NewStream()
	if err != nil {
		return err
	}
	parents, err1 := NewCounter(ctx, att.Buffer(), parentSlot)
	mine, err2 := NewCounter(ctx, att.Buffer(), childSlot)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if os.Getenv(doEnv) == "turns" {
		for n := uint64(1); n <= turns; n++ {
			w, err := mine.Wait(context.Background(), s, n)
			if err != nil {
				return err
			}
			if err := errors.Join(parents.Signal(s, n), w.Result()); err != nil {
				return err
			}
		}
		if err := s.Synchronize(context.Background()); err != nil {
			return err
		}
	}
	untilInputEnds("ready")
	return errors.Join(parents.Close(), mine.Close(), s.Close(), att.Close(), ctx.Close())
}

const turns = 20

// Streams of two processes take turns by counters in memory that they share.
func TestCounterOrdersProcesses(t *testing.T) { takeTurns(t, nil) }

// FAULTS 46, D18: also if one has PID, IPC, mount and network namespaces of its own.
func TestFault46_CounterBetweenNamespaces(t *testing.T) { takeTurns(t, cutest.Namespaced(t)) }

// takeTurns has this process and a child, which a program is in front of, take turns.
func takeTurns(t *testing.T, front []string) {
	_, ctx := leavesNothing(t)
	buf := control(t, ctx)
	srv := listen(t)
	serveAs(t, srv, "control", buf, cu.ReadWrite)
	mine, theirs := counters(t, ctx, buf)
	s := ok(ctx.NewStream())(t)
	cmd := cutest.Child(soon(t), "counter", pathEnv+"="+srv.Path(), doEnv+"=turns")
	if front != nil {
		cutest.Front(t, cmd, front)
	}
	c := startCommand(t, cmd)
	for n := uint64(1); n <= turns; n++ {
		require.NoError(t, theirs.Signal(s, n))
		w := ok(mine.Wait(soon(t), s, n))(t)
		require.NoError(t, w.Result())
	}
	c.says(t, "ready")
	c.end(t)
	require.NoError(t, s.Close())
}

// FAULTS 18: a stream that waits for a peer which was killed is freed at the
// deadline, whoever asks is told, and all can be closed.
func TestFault18_CounterOfAKilledPeer(t *testing.T) {
	_, ctx := leavesNothing(t)
	buf := control(t, ctx)
	srv := listen(t)
	serveAs(t, srv, "control", buf, cu.ReadWrite)
	mine, theirs := counters(t, ctx, buf)
	s := ok(ctx.NewStream())(t)
	c := start(t, "counter", srv.Path(), "nothing")
	c.says(t, "ready")
	limited, cancel := context.WithCancelCause(t.Context())
	w := ok(mine.Wait(limited, s, 1))(t)
	c.kill()
	gone := errors.New("the peer is gone")
	cancel(gone)
	err := w.Result()
	require.ErrorIs(t, err, cu.ErrGivenUp)
	require.NotContains(t, err.Error(), "waits still")
	require.NoError(t, s.Synchronize(soon(t)))
	require.ErrorIs(t, mine.Signal(s, 2), gone)
	require.ErrorIs(t, errOf(mine.Wait(soon(t), s, 2)), cu.ErrGivenUp)
	require.NoError(t, theirs.Signal(s, 1), "the other slot is as it was")
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, s.Close())
}

// A context that has ended already breaks nothing, in a stream or on the host.
func TestCounterWaitThatIsOverBeforeItBegins(t *testing.T) {
	_, ctx := leavesNothing(t)
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
	w := ok(mine.Wait(soon(t), s, 1))(t)
	require.NoError(t, errors.Join(w.Result(), mine.Await(soon(t), 1)))
	require.ErrorIs(t, mine.Await(over, 1), late, "it is there, and nobody wants to know")
}

// Memory that could not be written, or is not there, makes no counter.
func TestCounterRefusals(t *testing.T) {
	dev, ctx := leavesNothing(t)
	for _, slot := range []int{-1, slots, 1<<57 - 1, math.MaxInt} {
		require.ErrorContains(t, errOf(NewCounter(ctx, control(t, ctx), slot)), "has room for")
	}
	ro := ok(vmm.New(dev, CounterStride, vmm.WithAccess(cu.ReadOnly)))(t)
	require.ErrorContains(t, errOf(NewCounter(ctx, ro, 0)), "read-only")
	require.NoError(t, ro.Close())
	_, err := NewCounter(ctx, (&Attachment{memory: &opened{}}).Buffer(), 0) // as of a producer that offers legacy memory
	require.ErrorIs(t, err, ErrHandle)
	var none *Counter
	require.NoError(t, none.Close())
	require.ErrorIs(t, none.Signal(nil, 1), ErrClosed)
	require.ErrorIs(t, errOf(none.Wait(soon(t), nil, 1)), ErrClosed)
}
