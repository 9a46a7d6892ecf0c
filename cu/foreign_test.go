package cu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// Invariant 5: a handle of one driver does not reach another, which might crash
// on it.
func TestHandlesOfAnotherDriverAreRefused(t *testing.T) {
	s, drv, _ := spied(t)
	otherDrv := cutest.Driver(t)
	dev, other := firstDevice(t, drv), firstDevice(t, otherDrv)
	ctx, otherCtx := cutest.Context(t, dev), cutest.Context(t, other)
	event, otherEvent, pool := newEvent(t, ctx, 0), newEvent(t, otherCtx, 0), newPool(t, other)
	for symbol, use := range map[string]func() error{
		"cuEventElapsedTime":      func() error { _, err := event.Elapsed(otherEvent); return err },
		"cuStreamWaitEvent":       func() error { return newStream(t, ctx).WaitEvent(otherEvent) },
		"cuCtxEnablePeerAccess":   func() error { return ctx.EnablePeerAccess(otherCtx) },
		"cuCtxDisablePeerAccess":  func() error { return ctx.DisablePeerAccess(otherCtx) },
		"cuMemAllocFromPoolAsync": func() error { _, err := pool.AllocAsync(ctx.NullStream(), 4096); return err },
		"cuMemPoolImportPointer":  func() error { _, err := pool.ImportPointer(ctx, cu.PoolPointer{}, 4096); return err },
		"cuDeviceSetMemPool":      func() error { return dev.SetPool(pool) },
	} {
		err := use()
		require.ErrorIs(t, err, cu.ErrInvalidHandle, symbol)
		require.ErrorContains(t, err, "belongs to another driver", symbol)
		require.ErrorContains(t, err, symbol)
		require.Zero(t, s.count(symbol), symbol)
	}
}
