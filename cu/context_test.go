package cu_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// FAULTS 11, invariant 5: whatever is made in a context is closed once, by its owner or by the context.
func TestFault11_CloseIsIdempotentAndNilSafe(t *testing.T) {
	for _, by := range []string{"owner", "context"} {
		s, _, dev, _ := spiedContext(t)
		all := owners(t, dev)
		if by == "context" {
			require.NoError(t, all[len(all)-1].(*cu.Context).Close())
		}
		for range 3 {
			closeAll(t, all)
		}
		for symbol, want := range map[string]int{
			"cuStreamDestroy_v2": 1, "cuMemFree_v2": 3, "cuDestroyExternalMemory": 1, "cuMemFreeAsync": 1, "cuMemFreeHost": 1, "cuMemHostUnregister": 1,
			"cuGraphDestroy": 1, "cuGraphExecDestroy": 1, "cuModuleUnload": 1, "cuMemPoolDestroy": 1, "cuMemRelease": 1, "cuDevicePrimaryCtxRelease_v2": 1,
		} {
			require.Equal(t, want, s.count(symbol), "%s, closed by its %s", symbol, by)
		}
	}
}

// Invariant 5: nothing reaches the driver through a closed handle that a function is given.
func TestCopyWithClosedIsErrClosed(t *testing.T) {
	s, _, dev := spied(t)
	open := cutest.Context(t, dev)
	p := alloc(t, open, 4096).Ptr()
	closed := ok(dev.PrimaryContext())(t)
	stream := ok(open.NewStream())(t)
	graph, err := open.NewGraph()
	require.NoError(t, err)
	require.NoError(t, errors.Join(closed.Close(), stream.Close(), graph.Close()))

	host := make([]byte, 16)
	side, far := cu.DeviceSide(p, 64), cu.DeviceSide(p, 64)
	far.Context = closed
	before := s.calls()
	for name, call := range map[string]func() error{
		"CopyToDevice":             func() error { return cu.CopyToDevice(closed, p, host) },
		"CopyToDeviceAsync":        func() error { return cu.CopyToDeviceAsync(closed.NullStream(), p, host) },
		"CopyToHost":               func() error { return cu.CopyToHost(closed, host, p) },
		"CopyToHostAsync":          func() error { return cu.CopyToHostAsync(closed.NullStream(), host, p) },
		"Fill 32":                  func() error { return cu.Fill(closed, p, uint32(1), 1) },
		"Copy":                     func() error { return cu.Copy(closed, p, p+64, 64) },
		"CopyPeer":                 func() error { return cu.CopyPeer(closed, p, open, p+64, open, 64) },
		"CopyPeer to":              func() error { return cu.CopyPeer(open, p, closed, p+64, open, 64) },
		"CopyPeer from":            func() error { return cu.CopyPeer(open, p, open, p+64, closed, 64) },
		"Copy2D":                   func() error { return cu.Copy2D(closed, side, cu.HostSide(host, 4), 4, 4) },
		"Copy3D":                   func() error { return cu.Copy3D(closed, side, cu.HostSide(host, 4), 4, 2, 2) },
		"Copy3D to":                func() error { return cu.Copy3D(open, far, cu.HostSide(host, 4), 4, 2, 2) },
		"Copy3D from":              func() error { return cu.Copy3D(open, cu.HostSide(host, 4), far, 4, 2, 2) },
		"Fill2D 32":                func() error { return cu.Fill2D(closed, p, 64, uint32(1), 1, 1) },
		"CopyToDeviceAsync stream": func() error { return cu.CopyToDeviceAsync(stream, p, host) },
		"CopyToHostAsync stream":   func() error { return cu.CopyToHostAsync(stream, host, p) },
		"Fill stream":              func() error { return cu.FillAsync(stream, p, uint8(1), 1) },
		"Fill2D stream":            func() error { return cu.Fill2DAsync(stream, p, 64, uint8(1), 1, 1) },
		"Copy stream":              func() error { return cu.CopyAsync(stream, p, p+64, 64) },
		"CopyPeer stream":          func() error { return cu.CopyPeerAsync(stream, p, open, p+64, open, 64) },
		"AddFill":                  func() error { _, err := cu.AddFill(graph, p, uint8(1), 1); return err },
		"GraphNode.Type":           func() error { _, err := cu.GraphNode{}.Type(); return err },
		"AddFill nil":              func() error { _, err := cu.AddFill(nil, p, uint8(1), 1); return err },
	} {
		require.ErrorIs(t, call(), cu.ErrClosed, name)
	}
	require.Equal(t, before, s.calls(), "calls that reached the driver")
}

// Close ends what was made in the context, also where somebody else keeps the
// primary context alive. FAULTS 12.
func TestFault12_ContextClosesItsStreamsAndMemory(t *testing.T) {
	cutest.Alone(t, "it counts the device's memory")
	s, _, dev := spied(t)
	keep := cutest.Context(t, dev)
	first := ok(keep.NewStream())(t) // for which a GPU's driver keeps memory
	require.NoError(t, first.Close())
	free := freeMemory(t, keep)

	ctx := ok(dev.PrimaryContext())(t)
	stream := ok(ctx.NewStream())(t)
	require.Same(t, ctx, stream.Context())
	require.Same(t, dev, ctx.Device())
	event := ok(ctx.NewEvent(cu.EventDefault))(t)
	require.EqualValues(t, 32<<20, ok(ctx.Alloc(32<<20))(t).Size())
	now := freeMemory(t, keep)
	require.Less(t, now, free)

	require.NoError(t, ctx.Close())
	require.Equal(t, 2, s.count("cuStreamDestroy_v2"))
	require.Equal(t, 1, s.count("cuMemFree_v2"))
	require.Equal(t, 1, s.count("cuEventDestroy_v2"))
	require.ErrorIs(t, errOf(stream.Query()), cu.ErrClosed)
	require.ErrorIs(t, errOf(event.Query()), cu.ErrClosed)
	now = freeMemory(t, keep)
	require.Equal(t, free, now)
}

// A second Close while the first is under way must not take the context away
// from under it.
func TestContextClosedByTwoAtOnceLeavesNothing(t *testing.T) {
	cutest.Alone(t, "it counts the device's memory")
	s, _, dev := spied(t)
	keep := cutest.Context(t, dev)
	free := freeMemory(t, keep)
	ctx := ok(dev.PrimaryContext())(t)
	for range 4 {
		require.NoError(t, errOf(ctx.Alloc(1<<20)))
	}
	var once sync.Once
	s.Hook("cuMemFree", func(_ sys.Call, next func() sys.CUresult) sys.CUresult {
		once.Do(func() { require.NoError(t, ctx.Close()) }) // the second, inside the first
		return next()
	})
	require.NoError(t, ctx.Close())
	require.Equal(t, []string{"cuMemFree_v2", "cuMemFree_v2", "cuMemFree_v2", "cuMemFree_v2", "cuDevicePrimaryCtxRelease_v2"},
		s.sequence("cuMemFree_v2", "cuDevicePrimaryCtxRelease_v2"))
	now := freeMemory(t, keep)
	require.Equal(t, free, now)
}

// Making and closing race: whatever was made is closed by one of the two.
func TestContextClosedWhileThingsAreMadeInIt(t *testing.T) {
	s, _, dev := spied(t)
	keep := cutest.Context(t, dev)
	for range 20 {
		ctx := ok(dev.PrimaryContext())(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					mem, err := ctx.Alloc(4096)
					if err != nil {
						require.ErrorIs(t, err, cu.ErrClosed)
						return
					}
					stream, err := ctx.NewStream()
					if err == nil {
						require.NoError(t, stream.Close())
					}
					require.NoError(t, mem.Close())
				}
			})
		}
		require.NoError(t, keep.Synchronize(t.Context()))
		require.NoError(t, ctx.Close())
		wg.Wait()
	}
	require.Equal(t, s.count("cuMemAlloc_v2"), s.count("cuMemFree_v2"))
	require.Equal(t, s.count("cuStreamCreate"), s.count("cuStreamDestroy_v2"))
}

// Invariant 5: the context is released after the last call in it.
func TestCloseWaitsForTheCallsInFlight(t *testing.T) {
	s, _, dev := spied(t)
	ctx := ok(dev.PrimaryContext())(t)
	inside, goOn := make(chan struct{}), make(chan struct{})
	s.Hook("cuMemGetInfo", func(_ sys.Call, next func() sys.CUresult) sys.CUresult {
		close(inside)
		<-goOn
		return next()
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _, err := ctx.MemInfo()
		assert.NoError(t, err)
	})
	<-inside
	wg.Go(func() { require.NoError(t, ctx.Close()) })
	for { // until Close has begun
		if ctx.Synchronize(t.Context()) != nil {
			break
		}
	}
	require.Zero(t, s.count("cuDevicePrimaryCtxRelease_v2"))
	close(goOn)
	wg.Wait()
	require.Equal(t, []string{"cuMemGetInfo_v2", "cuDevicePrimaryCtxRelease_v2"},
		s.sequence("cuMemGetInfo_v2", "cuDevicePrimaryCtxRelease_v2"))
}
