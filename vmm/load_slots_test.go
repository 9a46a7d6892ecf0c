package vmm_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/vmm"
)

// One slot is copied while the other is read or written: a worker asks whether a copy is
// done when it has begun the next.
func TestSlotsOverlap(t *testing.T) {
	var calls []string // of one worker
	dev := cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		switch symbol := call.Symbol(); {
		case strings.HasPrefix(symbol, "cuMemcpy"):
			calls = append(calls, "copy")
		case symbol == "cuStreamQuery" && len(calls) > 0 && calls[len(calls)-1] != "ask":
			calls = append(calls, "ask")
		}
		return next()
	}))
	buf := newBuffer(t, dev, 1<<16)
	ranges := []vmm.FileRange{{File: fileOf(t, noise(4*8192, 1)), Size: 4 * 8192}}
	for _, transfer := range []func(context.Context, []vmm.FileRange, vmm.TransferOptions) error{buf.Load, buf.Store} {
		calls = nil
		require.NoError(t, transfer(t.Context(), ranges, small(1)))
		require.Equal(t, []string{"copy", "copy", "ask", "copy", "ask", "copy", "ask"}, calls)
	}
}

// A worker that fails ends the others before it gives its slots back, for which it may
// have to wait.
func TestFirstFailureEndsAllWorkers(t *testing.T) {
	const workers, pieces = 4, 64
	var copies, frees atomic.Int64
	var freeing, freed chan struct{}
	dev := cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		switch symbol := call.Symbol(); {
		case strings.HasPrefix(symbol, "cuMemcpy"):
			switch n := copies.Add(1); {
			case n == 3:
				return sys.CUDA_ERROR_OUT_OF_MEMORY
			case n > 3:
				<-freeing
			}
		case symbol == "cuMemFreeHost":
			switch frees.Add(1) {
			case 1:
				close(freeing)
				<-freed
			case workers:
				close(freed)
			}
		}
		return next()
	}))
	buf := newBuffer(t, dev, pieces*8192)
	ranges := []vmm.FileRange{{File: fileOf(t, noise(pieces*8192, 1)), Size: pieces * 8192}}
	for _, transfer := range []func(context.Context, []vmm.FileRange, vmm.TransferOptions) error{buf.Load, buf.Store} {
		copies.Store(0)
		frees.Store(0)
		freeing, freed = make(chan struct{}), make(chan struct{})
		require.ErrorIs(t, transfer(t.Context(), ranges, small(workers)), cu.ErrOutOfMemory)
		require.LessOrEqual(t, copies.Load(), int64(3+2*workers))
	}
}
