package cu_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// A context lives until its last reference is closed, and each reference closes what was
// made in it.
func TestRetain(t *testing.T) {
	for name, open := range map[string]func(*cu.Device) (*cu.Context, error){
		"primary": (*cu.Device).PrimaryContext,
		"created": func(dev *cu.Device) (*cu.Context, error) { return dev.NewContext(cu.SchedAuto) },
	} {
		t.Run(name, func(t *testing.T) {
			first := ok(open(cutest.Device(t)))(t)
			second := ok(first.Retain())(t)
			require.Equal(t, first.Handle(), second.Handle())
			s := ok(first.NewStream())(t)
			kept := ok(second.NewEvent(cu.EventDisableTiming))(t)
			require.NoError(t, kept.Record(s), "of the same context")
			require.NoError(t, first.Close())
			require.ErrorIs(t, s.Synchronize(soon(t)), cu.ErrClosed)
			require.NoError(t, kept.Synchronize(soon(t)))
			require.NoError(t, second.Synchronize(soon(t)))
			require.ErrorIs(t, errOf(first.Retain()), cu.ErrClosed)
			require.NoError(t, second.Close())
		})
	}
	require.ErrorIs(t, errOf((*cu.Context)(nil).Retain()), cu.ErrClosed)
}

// Retain of a context that is being closed returns a good reference or an error.
func TestRetainWhileOthersClose(t *testing.T) {
	dev := cutest.Device(t)
	for range 50 {
		ctx := ok(dev.NewContext(cu.SchedAuto))(t)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				other, err := ctx.Retain()
				if errors.Is(err, cu.ErrClosed) {
					return
				}
				if err := errors.Join(err, other.Synchronize(t.Context()), other.Close()); err != nil {
					t.Error(err)
				}
			})
		}
		require.NoError(t, ctx.Close())
		all.Wait()
	}
}
