package soft

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

// The host's own bytes are seen by a stream that waits for them, in pinned
// memory, and may be written by one.
func TestWaitSeesTheHost(t *testing.T) {
	c := inContext(t, 0)
	pinned, s := hostMemory(t, c, 4096), newStream(t, c, nonBlocking)
	ok(t, c.CuStreamWriteValue64_v2(s, addr(pinned)+8, 1<<40, 0))
	ok(t, c.CuStreamWaitValue32_v2(s, addr(pinned), 1, uint32(sys.CU_STREAM_WAIT_VALUE_EQ)))
	want(t, sys.CUDA_ERROR_NOT_READY, c.CuStreamQuery(s))
	storeWord(pinned[:4], 1)
	ok(t, c.CuStreamSynchronize(s))
	require.EqualValues(t, 1<<40, loadWord(pinned[8:16]))
}

// Pinned memory is freed when no stream waits for it any more.
func TestPinnedFreedWhileWaiting(t *testing.T) {
	c := inContext(t, 0)
	s := newStream(t, c, nonBlocking)
	word := pinnedMemory(t, c, 4)
	ok(t, c.CuStreamWaitValue32_v2(s, addr(word), 1, 0))
	freed := blocked(t, func() sys.CUresult { return c.CuMemFreeHost(at(word)) })
	want(t, sys.CUDA_ERROR_NOT_READY, c.CuStreamQuery(s))
	storeWord(word, 1)
	ok(t, <-freed)
	ok(t, c.CuStreamQuery(s))
}

// A context that is lost lets go of the streams that wait in it, also for other
// streams, and of those of other devices that wait for them.
func TestLostContextEndsWaits(t *testing.T) {
	c, c1 := inContext(t, 0), inContext(t, 1)
	word, _ := buffer(t, 2*MiB, 0)
	waiting, behind, peer, free := newStreamUnchecked(t, c), newStreamUnchecked(t, c), newStreamUnchecked(t, c1), newStreamUnchecked(t, c1)
	e := new(sys.CUevent)
	ok(t, c.CuEventCreate(e, 0))
	ok(t, c.CuStreamWaitValue32_v2(waiting, word, 1, 0))
	ok(t, c.CuEventRecord(*e, waiting))
	ok(t, c.CuStreamWaitEvent(behind, *e, 0))
	ok(t, c1.CuStreamWaitEvent(peer, *e, 0))
	bad := newStreamUnchecked(t, c)
	p, unmap := looseBuffer(t, 2*MiB)
	ok(t, c.CuStreamWaitValue32_v2(bad, p, 1, 0))
	ok(t, c1.CuStreamSynchronize(free))
	unmap()
	for _, s := range []sys.CUstream{bad, waiting, behind} {
		want(t, sys.CUDA_ERROR_LAUNCH_FAILED, c.CuStreamSynchronize(s))
	}
	want(t, sys.CUDA_ERROR_LAUNCH_FAILED, c1.CuStreamSynchronize(peer))
	want(t, sys.CUDA_ERROR_LAUNCH_FAILED, c1.CuStreamQuery(free))
}

// A destroyed stream goes on waiting, and its context waits for it.
func TestDestroyWaitingStream(t *testing.T) { // D20b
	c := inContext(t, 0)
	word, s := linear(t, c, 8), new(sys.CUstream)
	ok(t, c.CuMemsetD8_v2(word, 0, 8))
	ok(t, c.CuStreamCreate(s, nonBlocking))
	ok(t, c.CuStreamWaitValue32_v2(*s, word, 1, 0))
	ok(t, c.CuStreamDestroy_v2(*s))
	done := blocked(t, func() sys.CUresult { return c.CuCtxSynchronize() })
	ok(t, c.CuStreamWriteValue32_v2(newStream(t, c, nonBlocking), word, 1, 0))
	ok(t, <-done)
}

// Before CUDA 11.7 there is the first ABI, and with it what it alone had.
func TestFirstABIOfMemOps(t *testing.T) {
	require.Equal(t, "1 CUDA_SUCCESS CUDA_SUCCESS CUDA_SUCCESS", output(t, "memops", envVersion+"=11040"))
	require.Equal(t, "0 CUDA_ERROR_NOT_SUPPORTED CUDA_ERROR_NOT_SUPPORTED CUDA_ERROR_NOT_SUPPORTED", output(t, "memops", envVersion+"=11070"))
}
