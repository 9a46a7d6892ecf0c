package soft

import (
	"testing"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

// newEvent returns an event that is destroyed when the test ends.
func newEvent(t testing.TB, c sys.Caller, flags uint32) sys.CUevent {
	t.Helper()
	e := new(sys.CUevent)
	ok(t, c.CuEventCreate(e, flags))
	t.Cleanup(func() { ok(t, c.CuEventDestroy_v2(*e)) })
	return *e
}

func TestEvent(t *testing.T) {
	c := inContext(t, 0)
	s, e := newStream(t, c, nonBlocking), newEvent(t, c, 0)
	ok(t, c.CuEventQuery(e)) // never recorded
	ok(t, c.CuEventSynchronize(e))
	open := block(t, c, s)
	ok(t, c.CuEventRecord(e, s))
	want(t, sys.CUDA_ERROR_NOT_READY, c.CuEventQuery(e))
	open()
	ok(t, c.CuEventSynchronize(e))
	ok(t, c.CuEventQuery(e))
}

// A stream waits for an event as it was when the wait was made, of another
// device too.
func TestWaitEvent(t *testing.T) {
	c, c1 := inContext(t, 0), inContext(t, 1)
	a, b, e := newStream(t, c, nonBlocking), newStream(t, c1, nonBlocking), newEvent(t, c, 0)
	ok(t, c1.CuStreamWaitEvent(b, e, 0)) // never recorded: nothing to wait for
	ok(t, c1.CuStreamSynchronize(b))
	open := block(t, c, a)
	ok(t, c.CuEventRecord(e, a))
	ok(t, c1.CuStreamWaitEvent(b, e, 0))
	require.True(t, waits(b))
	openLater := block(t, c, a)
	ok(t, c.CuEventRecord(e, a)) // does not matter to b
	want(t, sys.CUDA_ERROR_NOT_READY, c1.CuStreamQuery(b))
	open()
	ok(t, c1.CuStreamSynchronize(b))
	want(t, sys.CUDA_ERROR_NOT_READY, c.CuEventQuery(e))
	openLater()
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuStreamWaitEvent(a, e, 2))
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, c.CuEventRecord(e, b)) // of another context
	ok(t, c.CuStreamSynchronize(a))
}

func TestElapsedTime(t *testing.T) {
	c := inContext(t, 0)
	s, start, end, untimed := newStream(t, c, 0), newEvent(t, c, 0), newEvent(t, c, 0), newEvent(t, c, uint32(sys.CU_EVENT_DISABLE_TIMING))
	ms := new(float32)
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, c.CuEventElapsedTime_v2(ms, start, end)) // not recorded
	ok(t, c.CuEventRecord(start, s))
	ok(t, c.CuEventSynchronize(start))
	open := block(t, c, s)
	ok(t, c.CuEventRecord(end, s))
	ok(t, c.CuEventRecord(untimed, s))
	want(t, sys.CUDA_ERROR_NOT_READY, c.CuEventElapsedTime(ms, start, end))
	from := time.Now()
	for time.Since(from) < 3*time.Millisecond {
	}
	open()
	ok(t, c.CuStreamSynchronize(s))
	ok(t, c.CuEventElapsedTime(ms, start, end))
	require.Greater(t, *ms, float32(3))
	require.Less(t, *ms, float32(10000))
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, c.CuEventElapsedTime_v2(ms, start, untimed))
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, c.CuEventElapsedTime_v2(nil, start, end))
}

func TestEventHandles(t *testing.T) {
	c := inContext(t, 0)
	e := new(sys.CUevent)
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuEventCreate(e, 1<<10))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuEventCreate(e, uint32(sys.CU_EVENT_INTERPROCESS)))
	ok(t, c.CuEventCreate(e, uint32(sys.CU_EVENT_INTERPROCESS|sys.CU_EVENT_DISABLE_TIMING)))
	ok(t, c.CuEventDestroy_v2(*e))
	ok(t, c.CuEventCreate(e, uint32(sys.CU_EVENT_BLOCKING_SYNC)))
	ok(t, c.CuEventDestroy_v2(*e))
	want(t, sys.CUDA_ERROR_CONTEXT_IS_DESTROYED, c.CuEventDestroy_v2(*e))
	misused(t, 1)
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, c.CuEventQuery(0))
}
