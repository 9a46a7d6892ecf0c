package soft

import (
	"sync"
	"testing"
	"time"

	"github.com/ebitengine/purego"
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

// A file that somebody cut short under a stream that waits fails the work and
// not the process.
func TestWaitForACutFile(t *testing.T) {
	c := inContext(t, 0)
	p, h := buffer(t, 2*MiB, 0)
	f := exported(t, h)
	s := newStreamUnchecked(t, c)
	ok(t, c.CuStreamWaitValue64_v2(s, p, 1, 0))
	require.NoError(t, f.Truncate(0))
	want(t, sys.CUDA_ERROR_LAUNCH_FAILED, c.CuStreamSynchronize(s))
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

// Conditions are those of words as wide as they are.
func TestMet(t *testing.T) {
	geq, and, nor := uint32(sys.CU_STREAM_WAIT_VALUE_GEQ), uint32(sys.CU_STREAM_WAIT_VALUE_AND), uint32(sys.CU_STREAM_WAIT_VALUE_NOR)
	for _, x := range []struct {
		condition   uint32
		word, value uint64
		bits        uintptr
		want        bool
	}{
		{geq, 0, 1<<32 - 1, 32, true}, {geq, 0, 1<<32 - 1, 64, false},
		{geq, 1 << 31, 0, 32, false}, {geq, 1 << 31, 0, 64, true},
		{nor, 1<<32 - 1, 0, 32, false}, {nor, 1<<32 - 1, 0, 64, true},
		{and, 1 << 31, 1 << 31, 32, true}, {and, 1 << 63, 1 << 63, 64, true},
	} {
		require.Equal(t, x.want, met(x.condition, x.word, x.value, x.bits), "%+v", x)
	}
}

// Before CUDA 11.7 there is the first ABI, and with it what it alone had.
func TestFirstABIOfMemOps(t *testing.T) {
	require.Equal(t, "1 CUDA_SUCCESS CUDA_SUCCESS CUDA_SUCCESS", output(t, "memops", envVersion+"=11040"))
	require.Equal(t, "0 CUDA_ERROR_NOT_SUPPORTED CUDA_ERROR_NOT_SUPPORTED CUDA_ERROR_NOT_SUPPORTED", output(t, "memops", envVersion+"=11070"))
}

// A record is what C functions that the driver calls were told.
type record struct {
	mu  sync.Mutex
	all [][3]uintptr
}

func (c *record) add(a, b, d uintptr) uintptr {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, [3]uintptr{a, b, d})
	return 0
}

func (c *record) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

func TestHostFunctions(t *testing.T) {
	c, told := inContext(t, 0), new(record)
	launched := purego.NewCallback(func(data uintptr) uintptr { return told.add(data, 0, 0) })
	added := purego.NewCallback(told.add)
	s := newStreamUnchecked(t, c)
	open := block(t, c, s)
	ok(t, c.CuLaunchHostFunc(s, sys.CUhostFn(launched), 7))
	ok(t, c.CuStreamAddCallback(s, sys.CUstreamCallback(added), 8, 0))
	require.Empty(t, told.all)
	open()
	ok(t, c.CuStreamSynchronize(s))
	require.Equal(t, [][3]uintptr{{7, 0, 0}, {uintptr(s), 0, 8}}, told.all)

	// In a context that is lost a callback is told so, and a function is not
	// called.
	open = block(t, c, s)
	p, free := looseBuffer(t, 2*MiB)
	ok(t, c.CuMemsetD8Async(p, 1, 10, s))
	ok(t, c.CuLaunchHostFunc(s, sys.CUhostFn(launched), 7))
	ok(t, c.CuStreamAddCallback(s, sys.CUstreamCallback(added), 9, 0))
	free()
	open()
	want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuStreamSynchronize(s))
	require.Eventually(t, func() bool { return told.count() == 3 }, 10*time.Second, time.Millisecond, "who waits hears of the loss first")
	require.Equal(t, [][3]uintptr{{uintptr(s), uintptr(sys.CUDA_ERROR_ILLEGAL_ADDRESS), 9}}, told.all[2:])
}
