package soft

import (
	"runtime"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

const nonBlocking = uint32(sys.CU_STREAM_NON_BLOCKING)

// newStream returns a stream that is destroyed when the test ends.
func newStream(t testing.TB, c sys.Caller, flags uint32) sys.CUstream {
	t.Helper()
	s := new(sys.CUstream)
	ok(t, c.CuStreamCreate(s, flags))
	t.Cleanup(func() { ok(t, c.CuStreamDestroy_v2(*s)) })
	return *s
}

// block keeps a stream busy until open is called, or the test ends.
func block(t testing.TB, c sys.Caller, h sys.CUstream) (open func()) {
	t.Helper()
	gate := make(chan struct{})
	driver.mu.Lock()
	defer driver.mu.Unlock()
	s := driver.streams[h]
	if h <= sys.CU_STREAM_LEGACY {
		s = driver.contexts[c.Context()].legacy
	}
	driver.enqueue(s, &op{run: func() sys.CUresult { <-gate; return sys.CUDA_SUCCESS }})
	opened := false
	open = func() {
		if !opened {
			opened = true
			close(gate)
		}
	}
	t.Cleanup(open)
	return open
}

// Work on a stream happens later, and in order.
func TestAsynchronous(t *testing.T) {
	c := inContext(t, 0)
	q := linear(t, c, 4*MiB)
	pinned := hostMemory(t, c, MiB)
	s := newStream(t, c, nonBlocking)
	open := block(t, c, s)
	for i := range uint8(200) {
		ok(t, c.CuMemsetD8Async(q, i, MiB, s))
		ok(t, c.CuMemcpyDtoDAsync_v2(q+MiB, q, MiB, s))
	}
	ok(t, c.CuMemcpyDtoHAsync_v2(at(pinned), q+MiB, MiB, s))
	want(t, sys.CUDA_ERROR_NOT_READY, c.CuStreamQuery(s))
	require.Zero(t, pinned[0])
	open()
	ok(t, c.CuStreamSynchronize(s))
	ok(t, c.CuStreamQuery(s))
	require.EqualValues(t, 199, pinned[MiB-1])
}

// A copy from pageable memory has taken the bytes when it returns; one from
// pinned memory has not.
func TestStaging(t *testing.T) { // fault 68
	c := inContext(t, 0)
	q := linear(t, c, 200)
	pinned, pageable := hostMemory(t, c, 100), make([]byte, 100)
	pinned[0], pageable[0] = 1, 1
	s := newStream(t, c, 0)
	open := block(t, c, s)
	ok(t, c.CuMemcpyHtoDAsync_v2(q, at(pageable), 100, s))
	ok(t, c.CuMemcpyHtoDAsync_v2(q+100, at(pinned), 100, s))
	pinned[0], pageable[0] = 2, 2
	open()
	got := make([]byte, 200)
	ok(t, c.CuMemcpyDtoHAsync_v2(at(got), q, 200, s)) // complete when it returns
	require.Equal(t, []byte{1, 2}, []byte{got[0], got[100]})
}

// Copies too large to be taken are done when they return.
func TestLargePageable(t *testing.T) {
	const n = stageLimit + 1
	c := inContext(t, 0)
	q := linear(t, c, n)
	s := newStream(t, c, nonBlocking)
	data, got := pattern(n, 4), make([]byte, n)
	ok(t, c.CuMemcpyHtoDAsync_v2(q, at(data), n, s))
	ok(t, c.CuStreamQuery(s))
	ok(t, c.CuMemcpyDtoHAsync_v2(at(got), q, n, s))
	require.Equal(t, data, got)
}

// The legacy default stream waits for blocking streams, and they for it.
func TestLegacyStream(t *testing.T) {
	c := inContext(t, 0)
	q, pinned := linear(t, c, 100), hostMemory(t, c, 100)
	blocking, free := newStream(t, c, 0), newStream(t, c, nonBlocking)
	notReady := sys.CUDA_ERROR_NOT_READY

	open := block(t, c, blocking)
	ok(t, c.CuMemsetD8_v2(q, 1, 100)) // on the legacy stream: waits
	ok(t, c.CuMemcpyDtoHAsync_v2(at(pinned), q, 100, free))
	ok(t, c.CuStreamSynchronize(free)) // does not wait
	require.Zero(t, pinned[0])
	want(t, notReady, c.CuStreamQuery(0))
	want(t, notReady, c.CuStreamQuery(sys.CU_STREAM_LEGACY))
	open()
	ok(t, c.CuStreamSynchronize(0))

	open = block(t, c, sys.CU_STREAM_LEGACY)
	ok(t, c.CuMemsetD8Async(q, 2, 100, blocking))
	require.True(t, waits(blocking))
	ok(t, c.CuMemsetD8Async(q, 1, 100, free))
	require.False(t, waits(free))
	ok(t, c.CuStreamSynchronize(free))
	want(t, notReady, c.CuStreamQuery(blocking))
	open()
	ok(t, c.CuStreamSynchronize(blocking))

	block(t, c, free)
	ok(t, c.CuStreamQuery(0))
	ok(t, c.CuMemcpyDtoH_v2(at(pinned), q, 100))
	require.EqualValues(t, 2, pinned[0])
}

// waits reports whether a stream's latest work waits for other streams'.
func waits(h sys.CUstream) bool {
	driver.mu.Lock()
	defer driver.mu.Unlock()
	return len(driver.streams[h].tail.deps) > 0
}

// A synchronous copy waits for the blocking streams' work.
func TestSynchronousCopyOrder(t *testing.T) {
	c := inContext(t, 0)
	q := linear(t, c, 100)
	s := newStream(t, c, 0)
	open := block(t, c, s)
	ok(t, c.CuMemsetD8Async(q, 5, 100, s))
	got := make([]byte, 1)
	done := blocked(t, func() sys.CUresult { return c.CuMemcpyDtoH_v2(at(got), q, 1) })
	open()
	ok(t, <-done)
	require.EqualValues(t, 5, got[0])
}

// cuMemFree waits for the work that may still use the memory.
func TestFreeWaits(t *testing.T) {
	c := inContext(t, 0)
	s, q := newStream(t, c, nonBlocking), new(sys.CUdeviceptr)
	ok(t, c.CuMemAlloc_v2(q, 100))
	open := block(t, c, s)
	ok(t, c.CuMemsetD8Async(*q, 5, 100, s))
	done := blocked(t, func() sys.CUresult { return c.CuMemFree_v2(*q) })
	open()
	ok(t, <-done)
	ok(t, c.CuCtxSynchronize())
}

// blocked makes a call that is not to return for now.
func blocked(t testing.TB, call func() sys.CUresult) <-chan sys.CUresult {
	t.Helper()
	done := make(chan sys.CUresult, 1)
	started := make(chan struct{})
	go func() {
		close(started)
		done <- call()
	}()
	<-started
	for range 10000 {
		require.Empty(t, done, "the call did not wait")
		runtime.Gosched()
	}
	return done
}

// Each thread has a default stream of its own.
func TestPerThreadStream(t *testing.T) {
	c := inContext(t, 0)
	onThread(t)
	ok(t, c.CuMemsetD8Async(linear(t, c, 1), 1, 1, sys.CU_STREAM_PER_THREAD))
	ctx := driver.contexts[c.Context()]
	require.Contains(t, ctx.perThread, threadID())
	require.NotEqual(t, ctx.legacy, ctx.perThread[threadID()])
	ok(t, c.CuStreamSynchronize(sys.CU_STREAM_PER_THREAD))
}

// A stream tells its device; those that a context always has cannot be destroyed.
func TestStreamDevice(t *testing.T) {
	c, dev := inContext(t, 1), new(sys.CUdevice)
	ok(t, c.CuStreamGetDevice(newStream(t, c, 0), dev))
	require.EqualValues(t, 1, *dev)
	for _, h := range []sys.CUstream{0, 1, 2} {
		want(t, sys.CUDA_ERROR_INVALID_HANDLE, c.CuStreamDestroy_v2(h))
	}
}

// A destroyed stream still does what it was given.
func TestDestroyBusyStream(t *testing.T) {
	c := inContext(t, 0)
	q, s := linear(t, c, 1), new(sys.CUstream)
	ok(t, c.CuStreamCreate(s, 0))
	open := block(t, c, *s)
	ok(t, c.CuMemsetD8Async(q, 3, 1, *s))
	ok(t, c.CuStreamDestroy_v2(*s))
	want(t, sys.CUDA_ERROR_NOT_READY, c.CuStreamQuery(0)) // it still counts
	open()
	got := make([]byte, 1)
	ok(t, c.CuMemcpyDtoH_v2(at(got), q, 1))
	require.EqualValues(t, 3, got[0])
	ok(t, c.CuCtxSynchronize())
	driver.mu.Lock()
	defer driver.mu.Unlock()
	require.Empty(t, driver.contexts[c.Context()].tails(everyStream))
	for s := range driver.contexts[c.Context()].streams {
		require.False(t, s.destroyed, "forgotten when done")
	}
}

// Memory freed on the host while work is queued: pinned memory stays until it
// is done; unmapped memory poisons the context.
func TestFreedUnderWay(t *testing.T) {
	c := inContext(t, 0)
	s := newStreamUnchecked(t, c)
	p, free := looseBuffer(t, 2*MiB)
	open := block(t, c, s)
	ok(t, c.CuMemsetD8Async(p, 1, 10, s))
	free()
	open()
	want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuStreamSynchronize(s))
	for _, r := range []sys.CUresult{ // sticky
		c.CuCtxSynchronize(), c.CuStreamQuery(s), c.CuMemAlloc_v2(new(sys.CUdeviceptr), 1), c.CuStreamQuery(0),
		c.CuMemsetD8Async(p, 1, 10, 0),
	} {
		want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, r)
	}
	onThread(t)
	ok(t, caller.CuCtxSetCurrent(c.Context())) // D20a
	buffer(t, 2*MiB, 0)                        // D20a
}

// newStreamUnchecked returns a stream that goes with its context.
func newStreamUnchecked(t testing.TB, c sys.Caller) sys.CUstream {
	t.Helper()
	s := new(sys.CUstream)
	ok(t, c.CuStreamCreate(s, 0))
	return *s
}

// Pinned memory that is freed, or unregistered, while a copy uses it stays until
// that is done, which the call waits for.
func TestPinnedFreedUnderWay(t *testing.T) {
	c := inContext(t, 0)
	q, s := linear(t, c, 10), newStream(t, c, nonBlocking)
	mine := pattern(10, 78)
	for what, begin := range map[string]func() (memory []byte, end func() sys.CUresult){
		"free": func() ([]byte, func() sys.CUresult) {
			b := pinnedMemory(t, c, 10)
			copy(b, pattern(10, 77))
			return b, func() sys.CUresult { return c.CuMemFreeHost(at(b)) }
		},
		"unregister": func() ([]byte, func() sys.CUresult) {
			ok(t, c.CuMemHostRegister_v2(at(mine), 10, 0))
			return mine, func() sys.CUresult { return c.CuMemHostUnregister(at(mine)) }
		},
	} {
		b, end := begin()
		want := append([]byte(nil), b...)
		open := block(t, c, s)
		ok(t, c.CuMemcpyHtoDAsync_v2(q, at(b), 10, s))
		ended := blocked(t, end)
		open()
		ok(t, <-ended)
		ok(t, c.CuStreamQuery(s))
		got := append([]byte(nil), want...)
		clear(got)
		ok(t, c.CuMemcpyDtoH_v2(at(got), q, 10))
		require.Equal(t, want, got, what)
	}
}
