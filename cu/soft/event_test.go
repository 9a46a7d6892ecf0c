package soft

import (
	"testing"

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
