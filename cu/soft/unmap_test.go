package soft

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

// spins are kernels that touch a word for ever, each in its way.
const spins = `.version 7.4
.target sm_75
.address_size 64
.visible .entry load(.param .u64 p) {
	.reg .b64 %rd<2>; .reg .b32 %r<2>;
	ld.param.u64 %rd1, [p];
again:
	ld.volatile.global.u32 %r1, [%rd1];
	bra again;
}
.visible .entry store(.param .u64 p) {
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [p];
again:
	st.global.u32 [%rd1], 1;
	bra again;
}
.visible .entry add(.param .u64 p) {
	.reg .b64 %rd<2>;
	ld.param.u64 %rd1, [p];
again:
	red.global.add.u32 [%rd1], 1;
	bra again;
}
.visible .entry once(.param .u64 p, .param .u64 q) {
	.reg .b64 %rd<3>; .reg .b32 %r<2>; .reg .pred %p<2>;
	ld.param.u64 %rd1, [p];
	ld.param.u64 %rd2, [q];
	ld.global.u32 %r1, [%rd1];
again:
	ld.volatile.global.u32 %r1, [%rd2];
	setp.eq.u32 %p1, %r1, 0;
	@%p1 bra again;
	ret;
}
`

// until waits for something that happens soon.
func until(t testing.TB, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !happened(); time.Sleep(50 * time.Microsecond) {
		require.True(t, time.Now().Before(deadline), what)
	}
}

// spinning starts so many blocks of a kernel of spins, and returns when one has touched
// its first word.
func spinning(t testing.TB, c sys.Caller, s sys.CUstream, name string, blocks uint32, p sys.CUdeviceptr, more ...any) {
	t.Helper()
	f := functionOf(t, c, loaded(t, c, spins), name)
	args := arguments(append([]any{uint64(p)}, more...)...)
	ok(t, c.CuLaunchKernel(f, blocks, 1, 1, 1, 1, 1, 0, s, args.list(), nil))
	until(t, "the kernel touches its word", func() bool { return touched(p) })
}

// touched reports whether a kernel that runs has touched an address.
func touched(p sys.CUdeviceptr) bool {
	driver.mu.Lock()
	defer driver.mu.Unlock()
	for k := range driver.running {
		if k.find(uint64(p), false) != nil {
			return true
		}
	}
	return false
}

// idle returns when no kernel runs any more, and no stream has the result of one to record.
func idle(t testing.TB) {
	t.Helper()
	until(t, "the kernels end", func() bool {
		driver.mu.Lock()
		defer driver.mu.Unlock()
		for _, s := range driver.streams {
			if s.running {
				return false
			}
		}
		return len(driver.running) == 0
	})
}

// Memory that is unmapped under a kernel costs it its life at the next access.
func TestUnmapUnderKernel(t *testing.T) { // C40
	for _, name := range []string{"load", "store", "add"} {
		t.Run(name, func(t *testing.T) {
			c := inContext(t, 0)
			t.Cleanup(driver.heal)
			before := freeMemory(t, c)
			s := newStream(t, c, nonBlocking)
			p, free := looseBuffer(t, 4*MiB)
			spinning(t, c, s, name, 64, p+64)
			free()
			want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuStreamSynchronize(s))
			want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuCtxSynchronize())
			require.ErrorContains(t, LastFault(), "illegal address "+inHex(p+64)+": the 4194304 bytes at "+inHex(p)+" were unmapped before")
			idle(t)
			driver.heal()
			require.Equal(t, before, freeMemory(t, c))
		})
	}
}

// Rights that are taken from a kernel are gone at its next access.
func TestAccessEndsUnderKernel(t *testing.T) {
	c := inContext(t, 0)
	t.Cleanup(driver.heal)
	s := newStream(t, c, nonBlocking)
	p, _ := buffer(t, 2*MiB, 0)
	spinning(t, c, s, "store", 8, p)
	ok(t, c.CuMemSetAccess(p, 2*MiB, accessTo(0, readOnly), 1))
	want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuStreamSynchronize(s))
	require.ErrorContains(t, LastFault(), "which device 0 may only read")
	idle(t)
	driver.heal()
}

// Memory that a kernel has touched and does not touch again stays until it ends: other
// threads may be at it when it is unmapped.
func TestUnmappedMemoryStaysForItsKernel(t *testing.T) { // C40
	c := inContext(t, 0)
	flag := hostMemory(t, c, 4096)
	clear(flag)
	before := freeMemory(t, c)
	s := newStream(t, c, nonBlocking)
	p, free := looseBuffer(t, 4*MiB)
	spinning(t, c, s, "once", 1, p, uint64(addr(flag)))
	free()
	require.Equal(t, before-4*MiB, freeMemory(t, c))
	storeWord(flag[:4], 1)
	ok(t, c.CuStreamSynchronize(s))
	require.Equal(t, before, freeMemory(t, c))
}

// Other memory of a kernel stays when some is unmapped, and so does memory that is
// mapped twice.
func TestUnmapOfOtherMemory(t *testing.T) { // C40
	c := inContext(t, 0)
	s := newStream(t, c, nonBlocking)
	h := create(t, 2*MiB, 0)
	p, q := reserved(t, 2*MiB), reserved(t, 2*MiB)
	mapped(t, p, 2*MiB, h)
	ok(t, caller.CuMemSetAccess(p, 2*MiB, accessTo(0, readWrite), 1))
	ok(t, caller.CuMemMap(q, 2*MiB, 0, h, 0))
	ok(t, caller.CuMemSetAccess(q, 2*MiB, accessTo(0, readWrite), 1))
	ok(t, c.CuMemsetD8_v2(p, 0, 4))
	ok(t, c.CuCtxSynchronize())
	spin := functionOf(t, c, loaded(t, c, probes), "spin")
	ok(t, c.CuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, s, arguments(uint64(p)).list(), nil))
	until(t, "the kernel touches its word", func() bool { return touched(p) })
	ok(t, caller.CuMemUnmap(q, 2*MiB))
	ok(t, c.CuStreamWriteValue32_v2(newStream(t, c, nonBlocking), p, 1, 0))
	ok(t, c.CuStreamSynchronize(s))
}

// Memory that is freed in its own context, or closed, goes from the kernels of other
// contexts, which nobody waits for.
func TestFreeUnderOtherContext(t *testing.T) { // C41
	owner, handles := ipcOwner(t)
	alloc := func(c sys.Caller, p *sys.CUdeviceptr) sys.CUresult { return c.CuMemAlloc_v2(p, 4*MiB) }
	for name, tc := range map[string]struct {
		alloc func(c sys.Caller, p *sys.CUdeviceptr) sys.CUresult
		free  func(c sys.Caller, p sys.CUdeviceptr) sys.CUresult
	}{
		"cuMemFree":      {alloc, func(c sys.Caller, p sys.CUdeviceptr) sys.CUresult { return c.CuMemFree_v2(p) }},
		"cuMemFreeAsync": {alloc, func(c sys.Caller, p sys.CUdeviceptr) sys.CUresult { return c.CuMemFreeAsync(p, 0) }},
		"cuIpcCloseMemHandle": {
			func(c sys.Caller, p *sys.CUdeviceptr) sys.CUresult {
				return c.CuIpcOpenMemHandle_v2(p, handles[0], lazyPeers)
			},
			func(c sys.Caller, p sys.CUdeviceptr) sys.CUresult { return c.CuIpcCloseMemHandle(p) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, other := inContext(t, 0), newContext(t, 0)
			t.Cleanup(driver.heal)
			s := newStream(t, other, nonBlocking)
			p := new(sys.CUdeviceptr)
			ok(t, tc.alloc(c, p))
			spinning(t, other, s, "load", 64, *p)
			ok(t, tc.free(c, *p))
			want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, other.CuStreamSynchronize(s))
			require.ErrorContains(t, LastFault(), "the 4194304 bytes at "+inHex(*p)+" were freed before")
			idle(t)
			driver.heal()
		})
	}
	owner.end(t)
}

// So does pinned memory: its owner may use it for something else.
func TestHostMemoryEndsUnderOtherContext(t *testing.T) { // C41
	for name, tc := range map[string]struct {
		begin func(t *testing.T, c sys.Caller) []byte
		end   func(c sys.Caller, b []byte) sys.CUresult
	}{
		"freed": {func(t *testing.T, c sys.Caller) []byte { return pinnedMemory(t, c, 4096) },
			func(c sys.Caller, b []byte) sys.CUresult { return c.CuMemFreeHost(at(b)) }},
		"unregistered": {func(t *testing.T, c sys.Caller) []byte {
			b := make([]byte, 4096)
			ok(t, c.CuMemHostRegister_v2(at(b), 4096, 0))
			return b
		}, func(c sys.Caller, b []byte) sys.CUresult { return c.CuMemHostUnregister(at(b)) }},
	} {
		t.Run(name, func(t *testing.T) {
			c, other := inContext(t, 0), newContext(t, 0)
			t.Cleanup(driver.heal)
			s, b := newStream(t, other, nonBlocking), tc.begin(t, c)
			spinning(t, other, s, "store", 1, addr(b))
			ok(t, tc.end(c, b))
			want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, other.CuStreamSynchronize(s))
			require.ErrorContains(t, LastFault(), "the 4096 bytes at "+inHex(addr(b))+" were "+name+" before")
			idle(t)
			driver.heal()
		})
	}
}

// cuMemFreeAsync frees memory of cuMemAlloc behind the work of the stream. Nobody can
// free it again meanwhile.
func TestFreeInOrderOfAStream(t *testing.T) { // C41
	c := inContext(t, 0)
	before := freeMemory(t, c)
	s := newStream(t, c, nonBlocking)
	p := new(sys.CUdeviceptr)
	ok(t, c.CuMemAlloc_v2(p, 4*MiB))
	open := block(t, c, s)
	ok(t, c.CuMemsetD8Async(*p, 1, 4*MiB, s))
	ok(t, c.CuMemFreeAsync(*p, s))
	require.Equal(t, before-4*MiB, freeMemory(t, c))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemFree_v2(*p))
	open()
	ok(t, c.CuStreamSynchronize(s))
	require.Equal(t, before, freeMemory(t, c))
}
