package share

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
)

// contexts are a context whose reference a test closes, of either kind, beside ctx.
var contexts = map[string]func(ctx *cu.Context) (*cu.Context, error){
	"primary": func(ctx *cu.Context) (*cu.Context, error) { return ctx.Device().PrimaryContext() },
	"created": func(ctx *cu.Context) (*cu.Context, error) { return ctx.Device().NewContext(cu.SchedAuto) },
}

// FAULTS 79: a signal is queued still though the reference to the context that its stream
// and its counter were made in has been closed.
func TestFault79_ClosedContextKeepsItsMemory(t *testing.T) {
	for name, open := range contexts {
		t.Run(name, func(t *testing.T) {
			_, ctx := leavesNothing(t)
			gate, buf := newGate(t, ctx), zeros(t, ctx)
			own := ok(open(ctx))(t)
			s := ok(own.NewStream())(t)
			c := newCounter(t, own, buf)
			gate.hold(t, s)
			require.NoError(t, c.Signal(s, 1))
			require.NoError(t, own.Close())
			for range 2 {
				require.ErrorIs(t, c.Close(), ErrInUse)
				require.ErrorIs(t, buf.Close(), ErrInUse)
			}
			gate.open(t)
			c.limit = closeLimit
			require.NoError(t, c.Close())
			require.NoError(t, buf.Close())
			requireWell(t, ctx)
		})
	}
}

// A stream whose context was closed is freed all the same when its wait is given up.
func TestWaitInAClosedContextIsGivenUp(t *testing.T) {
	for name, open := range contexts {
		t.Run(name, func(t *testing.T) {
			_, ctx := leavesNothing(t)
			buf := zeros(t, ctx)
			own := ok(open(ctx))(t)
			s := ok(own.NewStream())(t)
			c := newCounter(t, own, buf)
			limited, cancel := context.WithCancel(t.Context())
			w := ok(c.Wait(limited, s, 1))(t)
			require.NoError(t, own.Close())
			require.ErrorIs(t, c.Close(), ErrInUse)
			cancel()
			require.ErrorIs(t, w.Result(), cu.ErrGivenUp)
			require.NotContains(t, w.Result().Error(), "waits still")
			c.limit = closeLimit
			require.NoError(t, errors.Join(c.Close(), buf.Close()))
			requireWell(t, ctx)
		})
	}
}

// A context that is closed makes no counter, and its streams signal nothing.
func TestCounterInAClosedContext(t *testing.T) {
	_, ctx := leavesNothing(t)
	buf := zeros(t, ctx)
	own := ok(ctx.Retain())(t)
	s := ok(own.NewStream())(t)
	require.NoError(t, own.Close())
	require.ErrorIs(t, errOf(NewCounter(own, buf, 0)), cu.ErrClosed)
	c := newCounter(t, ctx, buf)
	require.ErrorIs(t, c.Signal(s, 1), cu.ErrClosed)
	require.ErrorIs(t, errOf(c.Wait(soon(t), s, 1)), cu.ErrClosed)
	require.NoError(t, errors.Join(c.Close(), buf.Close()))
}
