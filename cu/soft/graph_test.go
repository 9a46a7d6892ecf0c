package soft

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

// capture records what f gives to s.
func captureOf(t testing.TB, c sys.Caller, s sys.CUstream, f func()) sys.CUgraph {
	t.Helper()
	ok(t, c.CuStreamBeginCapture_v2(s, sys.CU_STREAM_CAPTURE_MODE_RELAXED))
	f()
	g := new(sys.CUgraph)
	ok(t, c.CuStreamEndCapture(s, g))
	return *g
}

// execOf makes a graph executable, until the test ends, and destroys it.
func execOf(t testing.TB, c sys.Caller, g sys.CUgraph) sys.CUgraphExec {
	t.Helper()
	e := new(sys.CUgraphExec)
	ok(t, c.CuGraphInstantiateWithFlags(e, g, 0))
	ok(t, c.CuGraphDestroy(g))
	t.Cleanup(func() { ok(t, c.CuGraphExecDestroy(*e)) })
	return *e
}

// A call that the real driver crashes on, or may, is an error and recorded (D4).
func TestGraphMisuse(t *testing.T) {
	c := inContext(t, 0)
	s := newStream(t, c, nonBlocking)
	g, e, n := new(sys.CUgraph), new(sys.CUgraphExec), new(sys.CUgraphNode)
	ok(t, c.CuGraphCreate(g, 0))
	ok(t, c.CuGraphAddEmptyNode(n, *g, nil, 0))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuGraphAddChildGraphNode(new(sys.CUgraphNode), *g, nil, 0, *g))
	ok(t, c.CuGraphInstantiateWithFlags(e, *g, 0))
	ok(t, c.CuGraphDestroy(*g))
	ok(t, c.CuGraphExecDestroy(*e))
	misused(t, 1)
	for _, r := range []sys.CUresult{
		c.CuGraphDestroy(*g), c.CuGraphClone(g, *g), c.CuGraphGetNodes(*g, nil, new(uintptr)),
		c.CuGraphExecDestroy(*e), c.CuGraphLaunch(*e, s), c.CuGraphUpload(*e, s),
		c.CuGraphNodeGetType(*n, new(sys.CUgraphNodeType)), c.CuGraphDestroy(0x1234),
		c.CuThreadExchangeStreamCaptureMode(nil),
	} {
		want(t, sys.CUDA_ERROR_INVALID_VALUE, r)
	}
	misused(t, 9)
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuGraphDestroy(0)) // which the real one takes well
	misused(t, 0)
}

// The graph of a capture is nobody's to destroy before its end.
func TestDestroyWhatIsCaptured(t *testing.T) {
	c := inContext(t, 0)
	s, g, same := newStream(t, c, nonBlocking), new(sys.CUgraph), new(sys.CUgraph)
	ok(t, c.CuStreamBeginCapture_v2(s, sys.CU_STREAM_CAPTURE_MODE_RELAXED))
	ok(t, c.CuStreamGetCaptureInfo_v2(s, new(sys.CUstreamCaptureStatus), nil, g, nil, nil))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuGraphDestroy(*g))
	misused(t, 1)
	ok(t, c.CuStreamEndCapture(s, same))
	require.Equal(t, *g, *same)
	ok(t, c.CuGraphDestroy(*same))
}

// A graph holds the pinned memory that it copies to and from, and gives it back
// with the last of its clones and executables.
func TestGraphHoldsPinnedMemory(t *testing.T) {
	c := inContext(t, 0)
	s, q := newStream(t, c, nonBlocking), linear(t, c, 10)
	g := captureOf(t, c, s, func() { freeWhileCopying(t, c, q, s) })
	clone := new(sys.CUgraph)
	ok(t, c.CuGraphClone(clone, g))
	e := execOf(t, c, g)
	ok(t, c.CuGraphLaunch(e, s))
	ok(t, c.CuStreamSynchronize(s))
	got := make([]byte, 10)
	ok(t, c.CuMemcpyDtoH_v2(at(got), q, 10))
	require.EqualValues(t, 77, got[9])

	driver.mu.Lock()
	w := driver.graphs[*clone].nodes[0].work
	require.Equal(t, 2, w.users) // the clone and the executable
	driver.mu.Unlock()
	ok(t, c.CuGraphDestroy(*clone))
	require.Equal(t, 1, w.users)
}

// A launch under way goes on when its executable is updated or destroyed.
func TestLaunchOutlivesItsExecutable(t *testing.T) {
	c := inContext(t, 0)
	s, q := newStream(t, c, nonBlocking), linear(t, c, 10)
	ok(t, c.CuMemsetD8_v2(q, 0, 10))
	ok(t, c.CuCtxSynchronize())
	g := captureOf(t, c, s, func() { ok(t, c.CuMemsetD8Async(q, 1, 1, s)) })
	other := captureOf(t, c, s, func() { ok(t, c.CuMemsetD8Async(q+1, 2, 1, s)) })
	e := new(sys.CUgraphExec)
	ok(t, c.CuGraphInstantiateWithFlags(e, g, 0))
	open := block(t, c, s)
	ok(t, c.CuGraphLaunch(*e, s))
	ok(t, c.CuGraphExecUpdate_v2(*e, other, nil))
	ok(t, c.CuGraphLaunch(*e, s))
	ok(t, c.CuGraphExecDestroy(*e))
	ok(t, c.CuGraphDestroy(g))
	ok(t, c.CuGraphDestroy(other))
	open()
	ok(t, c.CuStreamSynchronize(s))
	got := make([]byte, 3)
	ok(t, c.CuMemcpyDtoH_v2(at(got), q, 3))
	require.Equal(t, []byte{1, 2, 0}, got)
}

// Launches of one executable do not overlap, on whatever streams they are.
func TestLaunchesOfOneExecutableFollowEachOther(t *testing.T) {
	c := inContext(t, 0)
	a, b, q := newStream(t, c, nonBlocking), newStream(t, c, nonBlocking), linear(t, c, 10)
	e := execOf(t, c, captureOf(t, c, a, func() { ok(t, c.CuMemsetD8Async(q, 1, 1, a)) }))
	open := block(t, c, a)
	ok(t, c.CuGraphLaunch(e, a))
	ok(t, c.CuGraphLaunch(e, b))
	require.True(t, waits(b))
	open()
	ok(t, c.CuStreamSynchronize(b))
	ok(t, c.CuStreamSynchronize(a))
}

// Nothing is left of a capture whose context is reset, or whose stream is
// destroyed.
func TestCaptureGoesWithItsContext(t *testing.T) {
	c := inContext(t, 0)
	for _, end := range []func(sys.CUstream){
		func(s sys.CUstream) { ok(t, c.CuStreamDestroy_v2(s)) },
		func(sys.CUstream) { ok(t, caller.CuDevicePrimaryCtxReset_v2(0)) },
	} {
		s, q := new(sys.CUstream), new(sys.CUdeviceptr)
		ok(t, c.CuStreamCreate(s, nonBlocking))
		ok(t, c.CuMemAlloc_v2(q, 16))
		ok(t, c.CuStreamBeginCapture_v2(*s, sys.CU_STREAM_CAPTURE_MODE_RELAXED))
		ok(t, c.CuMemsetD8Async(*q, 1, 16, *s))
		require.Len(t, driver.captures, 1)
		ok(t, c.CuMemFree_v2(*q))
		end(*s)
		require.Empty(t, driver.captures)
		require.Empty(t, driver.graphs)
		require.Empty(t, driver.nodes)
	}
}

// Nodes that allocate and free are not there yet; being asked for one does not
// spoil the capture.
func TestAllocationIsNotCaptured(t *testing.T) {
	c := inContext(t, 0)
	s, q := newStream(t, c, nonBlocking), new(sys.CUdeviceptr)
	ok(t, c.CuMemAllocAsync(q, 16, s))
	g := captureOf(t, c, s, func() {
		want(t, sys.CUDA_ERROR_NOT_SUPPORTED, c.CuMemAllocAsync(new(sys.CUdeviceptr), 16, s))
		want(t, sys.CUDA_ERROR_NOT_SUPPORTED, c.CuMemFreeAsync(*q, s))
	})
	ok(t, c.CuGraphDestroy(g))
	ok(t, c.CuMemFreeAsync(*q, s))
	ok(t, c.CuStreamSynchronize(s))
}

// The thread that began a capture of another mode than the relaxed ends it, and
// may not do what is unsafe; no thread may while there is a global one, unless
// it says that it knows what it does.
func TestCaptureModesAreOfThreads(t *testing.T) {
	c := inContext(t, 0)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	elsewhere := func(f func() sys.CUresult) sys.CUresult {
		done := make(chan sys.CUresult)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			done <- f()
		}()
		return <-done
	}
	alloc := func() sys.CUresult {
		p := new(sys.CUdeviceptr)
		r := c.CuMemAlloc_v2(p, 16)
		if r == sys.CUDA_SUCCESS {
			ok(t, c.CuMemFree_v2(*p))
		}
		return r
	}
	careful := func() sys.CUresult {
		mode := new(sys.CUstreamCaptureMode)
		*mode = sys.CU_STREAM_CAPTURE_MODE_RELAXED
		ok(t, c.CuThreadExchangeStreamCaptureMode(mode))
		defer func() { ok(t, c.CuThreadExchangeStreamCaptureMode(mode)) }()
		return alloc()
	}
	const fine, refused = sys.CUDA_SUCCESS, sys.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	const spoilt, wrong = sys.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, sys.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
	for _, x := range []struct {
		mode             sys.CUstreamCaptureMode
		here, there, end sys.CUresult
	}{
		{sys.CU_STREAM_CAPTURE_MODE_GLOBAL, refused, refused, wrong},
		{sys.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, refused, fine, wrong},
		{sys.CU_STREAM_CAPTURE_MODE_RELAXED, fine, fine, fine},
	} {
		for _, try := range []struct {
			f    func() sys.CUresult
			want sys.CUresult
		}{
			{alloc, x.here},
			{func() sys.CUresult { return elsewhere(alloc) }, x.there},
			{careful, fine},
			{func() sys.CUresult { return elsewhere(careful) }, fine},
		} {
			s, g := newStream(t, c, nonBlocking), new(sys.CUgraph)
			ok(t, c.CuStreamBeginCapture_v2(s, x.mode))
			want(t, try.want, try.f())
			if try.want != fine {
				want(t, spoilt, c.CuStreamEndCapture(s, g))
				continue
			}
			want(t, x.end, elsewhere(func() sys.CUresult { return c.CuStreamEndCapture(s, g) }))
			want(t, sys.CUDA_ERROR_ILLEGAL_STATE, c.CuStreamEndCapture(s, new(sys.CUgraph)))
			if *g != 0 {
				ok(t, c.CuGraphDestroy(*g))
			}
		}
	}
}

// Memory that is gone by the time of a launch is a failure of the work.
func TestLaunchOfWhatIsGone(t *testing.T) {
	out := output(t, "gone")
	require.Equal(t, "CUDA_SUCCESS CUDA_SUCCESS CUDA_ERROR_ILLEGAL_ADDRESS", out)
}

func childGone() {
	must(caller.CuInit(0))
	ctx, s, q, g, e := new(sys.CUcontext), new(sys.CUstream), new(sys.CUdeviceptr), new(sys.CUgraph), new(sys.CUgraphExec)
	must(caller.CuDevicePrimaryCtxRetain(ctx, 0))
	c := caller.With(*ctx)
	must(c.CuStreamCreate(s, nonBlocking))
	must(c.CuMemAlloc_v2(q, 16))
	must(c.CuStreamBeginCapture_v2(*s, sys.CU_STREAM_CAPTURE_MODE_RELAXED))
	must(c.CuMemsetD8Async(*q, 1, 16, *s))
	must(c.CuStreamEndCapture(*s, g))
	must(c.CuGraphInstantiateWithFlags(e, *g, 0))
	must(c.CuMemFree_v2(*q))
	fmt.Println(c.CuGraphDestroy(*g), c.CuGraphLaunch(*e, *s), c.CuStreamSynchronize(*s))
}

// Host memory that is not there by then, on which the real driver crashes, is told
// of by the launch.
func TestLaunchWithoutItsHostMemory(t *testing.T) {
	c := inContext(t, 0)
	s, q := newStream(t, c, nonBlocking), linear(t, c, 10)
	e := execOf(t, c, captureOf(t, c, s, func() { ok(t, c.CuMemcpyHtoDAsync_v2(q, pointer(lowest), 10, s)) }))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuGraphLaunch(e, s))
	ok(t, c.CuStreamSynchronize(s))
}

// Without a place for it the graph is dropped, and with no executable its work.
func TestCaptureEndsWithoutAPlaceForTheGraph(t *testing.T) {
	c := inContext(t, 0)
	s, q := newStream(t, c, nonBlocking), linear(t, c, 10)
	runtime.LockOSThread() // which the context is bound to
	defer runtime.UnlockOSThread()
	ok(t, c.CuStreamBeginCapture_v2(s, sys.CU_STREAM_CAPTURE_MODE_RELAXED))
	freeWhileCopying(t, c, q, s)
	ok(t, driver.cuStreamEndCapture(s, nil)) // the account of handles would miss the graph
	require.Empty(t, driver.graphs)
	require.Empty(t, driver.nodes)
}
