package conformance

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

// much is memory that a GPU unmaps when it is freed. A small piece stays mapped beside
// its neighbours.
const much = 64 * MiB

// toucher is a kernel that reads its memory for ever, and says in flag that it has begun.
const toucher = `.version 7.4
.target sm_75
.address_size 64
.visible .entry touch(.param .u64 memory, .param .u64 flag) {
	.reg .b64 %rd<3>; .reg .b32 %r<2>;
	ld.param.u64 %rd1, [memory];
	ld.param.u64 %rd2, [flag];
	ld.volatile.global.u32 %r1, [%rd1];
	st.volatile.global.u32 [%rd2], 1;
	membar.sys;
again:
	ld.volatile.global.u32 %r1, [%rd1];
	bra again;
}
`

// A touching is the kernel in a context.
type touching struct {
	c    sys.Caller
	f    sys.CUfunction
	flag sys.CUdeviceptr
	word *uint32 // of the host, where flag is
}

// touches loads the kernel. Call it before a stream waits: that may hold up a load.
func touches(t testing.TB, c sys.Caller) *touching {
	t.Helper()
	mod := new(sys.CUmodule)
	k := &touching{c: c}
	ok(t, c.CuModuleLoadData(mod, image(toucher)))
	ok(t, c.CuModuleGetFunction(&k.f, *mod, sys.CString("touch")))
	host, r := pinned(c, 4*KiB, 0)
	ok(t, r)
	k.flag, k.word = sys.CUdeviceptr(addressOf(host)), wordAt(host)
	*k.word = 0
	return k
}

// queue gives a stream the kernel.
func (k *touching) queue(s sys.CUstream, p sys.CUdeviceptr) sys.CUresult {
	return k.c.CuLaunchKernel(k.f, 1, 1, 1, 1, 1, 1, 0, s, arguments(uint64(p), uint64(k.flag)), nil)
}

// run gives a stream the kernel, and returns when it is at its memory.
func (k *touching) run(t testing.TB, s sys.CUstream, p sys.CUdeviceptr) {
	t.Helper()
	ok(t, k.queue(s, p))
	becomes(t, func() bool { return atomic.LoadUint32(k.word) == 1 })
}

// becomes waits until begun.
func becomes(t testing.TB, begun func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !begun(); time.Sleep(10 * time.Microsecond) {
		require.True(t, time.Now().Before(deadline), "the work does not begin")
	}
}

// ends returns the answers of a stream and then of its context when the stream's work
// is over.
func ends(c sys.Caller, s sys.CUstream) string {
	return story(within(patience, func() sys.CUresult { return c.CuStreamSynchronize(s) }), c.CuCtxSynchronize())
}

// Transfers are so many copies or fills that some are under way for long enough to
// unmap their memory. begin makes what else they need, and returns what queues one.
type transfers struct {
	n     int
	begin func(t testing.TB, c sys.Caller) func(s sys.CUstream, p sys.CUdeviceptr) sys.CUresult
}

// A GPU copies within its memory much faster than to the host.
var (
	toHost = transfers{300, func(t testing.TB, c sys.Caller) func(sys.CUstream, sys.CUdeviceptr) sys.CUresult {
		host, r := pinned(c, much, 0)
		ok(t, r)
		return func(s sys.CUstream, p sys.CUdeviceptr) sys.CUresult { return c.CuMemcpyDtoHAsync_v2(host, p, much, s) }
	}}
	fromHost = transfers{300, func(t testing.TB, c sys.Caller) func(sys.CUstream, sys.CUdeviceptr) sys.CUresult {
		host, r := pinned(c, much, 0)
		ok(t, r)
		return func(s sys.CUstream, p sys.CUdeviceptr) sys.CUresult { return c.CuMemcpyHtoDAsync_v2(p, host, much, s) }
	}}
	acrossDevice = transfers{3000, func(t testing.TB, c sys.Caller) func(sys.CUstream, sys.CUdeviceptr) sys.CUresult {
		other := plain(t, c, much)
		return func(s sys.CUstream, p sys.CUdeviceptr) sys.CUresult { return c.CuMemcpyDtoDAsync_v2(other, p, much, s) }
	}}
	fills = transfers{3000, func(t testing.TB, c sys.Caller) func(sys.CUstream, sys.CUdeviceptr) sys.CUresult {
		return func(s sys.CUstream, p sys.CUdeviceptr) sys.CUresult { return c.CuMemsetD8Async(p, 1, much, s) }
	}}
)

// unmapUnder unmaps the memory of transfers as soon as the first is over.
func unmapUnder(what string, x transfers, want sys.CUresult) row {
	return asked("unmap under "+what+", synchronise, again", story(success, want, want), func(t testing.TB, c sys.Caller) any {
		p, _ := buffer(t, much)
		s, first := stream(t, c), event(t, c, 0)
		begin := x.begin(t, c)
		ok(t, begin(s, p))
		ok(t, c.CuEventRecord(first, s))
		for range x.n {
			ok(t, begin(s, p))
		}
		becomes(t, func() bool { return c.CuEventQuery(first) == success })
		return story(c.CuMemUnmap(p, much), ends(c, s))
	})
}

const illegal = sys.CUDA_ERROR_ILLEGAL_ADDRESS

var unmapUnderWork = alone("unmap under work",
	asked("unmap under a kernel, synchronise, again", story(success, illegal, illegal), func(t testing.TB, c sys.Caller) any {
		p, _ := buffer(t, much)
		s := stream(t, c)
		touches(t, c).run(t, s, p)
		return story(c.CuMemUnmap(p, much), ends(c, s))
	}),
	asked("wait, queue a kernel, unmap, write, synchronise, again", story(success, success, success, success, illegal, illegal), func(t testing.TB, c sys.Caller) any {
		p, _ := buffer(t, much)
		w, _ := buffer(t, unit)
		s, other, k := stream(t, c), stream(t, c), touches(t, c)
		return story(waitValue(c, s, w, 1), k.queue(s, p), c.CuMemUnmap(p, much), writeValue(c, other, w, 1), ends(c, s))
	}),
	unmapUnder("copies to the host", toHost, failed),
	unmapUnder("copies from the host", fromHost, failed),
	unmapUnder("copies of the device", acrossDevice, illegal),
	unmapUnder("fills", fills, illegal),
)

func TestC40_UnmapUnderWork(t *testing.T) { unmapUnderWork.check(t) }

var freeUnderWork = alone("free under work",
	asked("wait in another context, queue a kernel there, free, write, synchronise, again", story(success, success, success, success, illegal, illegal),
		func(t testing.TB, c sys.Caller) any {
			other := createdContext(t, 0, 0)
			p, s, k := plain(t, c, much), stream(t, other), touches(t, other)
			w, _ := buffer(t, unit)
			writer := stream(t, c)
			return story(waitValue(other, s, w, 1), k.queue(s, p), within(patience, func() sys.CUresult { return c.CuMemFree_v2(p) }),
				writeValue(c, writer, w, 1), ends(other, s))
		}),
	asked("free under a kernel of another context, synchronise, again", story(success, illegal, illegal), func(t testing.TB, c sys.Caller) any {
		other := createdContext(t, 0, 0)
		p, s := plain(t, c, much), stream(t, other)
		touches(t, other).run(t, s, p)
		return story(within(patience, func() sys.CUresult { return c.CuMemFree_v2(p) }), ends(other, s))
	}),
	asked("wait, close legacy memory", story(success, hangs), func(t testing.TB, c sys.Caller) any {
		p, w := open(t, c, owned(t).memory[0]), plain(t, c, 4*KiB)
		ok(t, c.CuMemsetD8_v2(w, 0, 4*KiB))
		return story(waitValue(c, stream(t, c), w, 1), within(hanging, func() sys.CUresult { return c.CuIpcCloseMemHandle(p) }))
	}),
)

// freeInStream frees memory of cuMemAlloc behind work of a stream that waits.
var freeInStream = sheet("free in a stream",
	asked("wait, set, free in the stream, write, synchronise, the default stream too, the memory is back",
		story(success, success, success, success, success, success, true), func(t testing.TB, c sys.Caller) any {
			s, writer := stream(t, c), stream(t, c)
			w, _ := buffer(t, unit)
			p := new(sys.CUdeviceptr)
			ok(t, c.CuMemAlloc_v2(p, much))
			before := freeBytes(t, c)
			queued := []any{waitValue(c, s, w, 1), c.CuMemsetD8Async(*p, 1, much, s),
				within(patience, func() sys.CUresult { return c.CuMemFreeAsync(*p, s) }), writeValue(c, writer, w, 1)}
			return story(append(queued, c.CuStreamSynchronize(s), c.CuStreamSynchronize(0), settles(t, c, before+much))...)
		}))

func TestC41_FreeUnderWork(t *testing.T) {
	freeUnderWork.check(t)
	freeInStream.check(t)
}
