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
			first, err := open(cutest.Device(t))
			require.NoError(t, err)
			second, err := first.Retain()
			require.NoError(t, err)
			require.Equal(t, first.Handle(), second.Handle())
			s, err := first.NewStream()
			require.NoError(t, err)
			kept, err := second.NewEvent(cu.EventDisableTiming)
			require.NoError(t, err)
			require.NoError(t, kept.Record(s), "of the same context")
			require.NoError(t, first.Close())
			require.ErrorIs(t, s.Synchronize(soon(t)), cu.ErrClosed)
			require.NoError(t, kept.Synchronize(soon(t)))
			require.NoError(t, second.Synchronize(soon(t)))
			_, err = first.Retain()
			require.ErrorIs(t, err, cu.ErrClosed)
			require.NoError(t, second.Close())
		})
	}
	_, err := (*cu.Context)(nil).Retain()
	require.ErrorIs(t, err, cu.ErrClosed)
}

// Retain of a context that is being closed returns a good reference or an error.
func TestRetainWhileOthersClose(t *testing.T) {
	dev := cutest.Device(t)
	for range 50 {
		ctx, err := dev.NewContext(cu.SchedAuto)
		require.NoError(t, err)
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
