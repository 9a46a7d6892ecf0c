package soft

import (
	"encoding/binary"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

// loaded returns a module of PTX, unloaded when the test ends.
func loaded(t testing.TB, c sys.Caller, text string) sys.CUmodule {
	t.Helper()
	mod := new(sys.CUmodule)
	ok(t, c.CuModuleLoadData(mod, text2c(text)))
	t.Cleanup(func() { ok(t, c.CuModuleUnload(*mod)) })
	return *mod
}

// functionOf returns a kernel of a module.
func functionOf(t testing.TB, c sys.Caller, mod sys.CUmodule, name string) sys.CUfunction {
	t.Helper()
	f := new(sys.CUfunction)
	ok(t, c.CuModuleGetFunction(f, mod, sys.CString(name)))
	return *f
}

// probes are kernels for these tests.
const probes = `.version 7.4
.target sm_75
.address_size 64
.global .align 8 .u64 counter = 5;
.global .align 8 .u64 pointer = counter;
.const .align 4 .u32 three = 3;
.extern .shared .align 16 .b8 room[];
.visible .entry store(.param .u64 p, .param .u32 v) {
	.reg .b64 %rd<3>; .reg .b32 %r<2>;
	ld.param.u64 %rd1, [p];
	ld.param.u32 %r1, [v];
	st.global.u32 [%rd1], %r1;
	ret;
}
.visible .entry count() {
	.reg .b64 %rd<3>; .reg .b32 %r<2>;
	ld.const.u32 %r1, [three];
	cvt.u64.u32 %rd1, %r1;
	ld.global.u64 %rd2, [pointer];
	red.global.add.u64 [%rd2], %rd1;
	ret;
}
.visible .entry spin(.param .u64 p) {
	.reg .b64 %rd<2>; .reg .b32 %r<2>; .reg .pred %p<2>;
	ld.param.u64 %rd1, [p];
again:
	ld.volatile.global.u32 %r1, [%rd1];
	setp.eq.u32 %p1, %r1, 0;
	@%p1 bra again;
	ret;
}
.visible .entry die() { trap; }
.visible .entry small() .maxntid 32 { ret; }
.visible .entry exact() .reqntid 8, 2, 1 { ret; }
.visible .entry shared(.param .u64 p) {
	.reg .b64 %rd<2>; .reg .b32 %r<3>;
	.shared .align 4 .b8 own[64];
	ld.param.u64 %rd1, [p];
	st.shared.u32 [own+60], 7;
	mov.u32 %r1, %dynamic_smem_size;
	st.global.u32 [%rd1], %r1;
	mov.u32 %r1, room;
	ld.shared.u32 %r2, [own+60];
	st.shared.u32 [%r1], %r2;
	ret;
}
`

// A launch happens later and in order.
func TestLaunchLater(t *testing.T) {
	c := inContext(t, 0)
	mod := loaded(t, c, probes)
	s := newStream(t, c, nonBlocking)
	flag := hostMemory(t, c, 4096) // kernels reach pinned memory, too
	clear(flag)
	p, free := looseBuffer(t, 2*MiB)
	ok(t, c.CuMemsetD8_v2(p, 0, 2*MiB))
	ok(t, c.CuCtxSynchronize())
	open := block(t, c, s)
	ok(t, c.CuLaunchKernel(functionOf(t, c, mod, "store"), 1, 1, 1, 1, 1, 1, 0, s, arguments(uint64(p), uint32(9)).list(), nil))
	ok(t, c.CuLaunchKernel(functionOf(t, c, mod, "spin"), 1, 1, 1, 1, 1, 1, 0, s, arguments(uint64(addr(flag))).list(), nil))
	want(t, sys.CUDA_ERROR_NOT_READY, c.CuStreamQuery(s))
	word := make([]byte, 4)
	ok(t, c.CuMemcpyDtoH_v2(at(word), p, 4))
	require.Zero(t, word[0])
	open()
	want(t, sys.CUDA_ERROR_NOT_READY, c.CuStreamQuery(s))
	storeWord(flag[:4], 1)
	ok(t, c.CuStreamSynchronize(s))
	ok(t, c.CuMemcpyDtoH_v2(at(word), p, 4))
	require.EqualValues(t, 9, word[0])
	free()
}

// Memory of a stream may be freed in it as soon as the kernel that uses it is
// queued; what is queued behind that may not use it.
func TestLaunchBeforeFree(t *testing.T) {
	c := inContext(t, 0)
	f := functionOf(t, c, loaded(t, c, probes), "store")
	s := newStream(t, c, nonBlocking)
	p := new(sys.CUdeviceptr)
	ok(t, c.CuMemAllocAsync(p, 4096, s))
	open := block(t, c, s)
	ok(t, c.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, arguments(uint64(*p), uint32(9)).list(), nil))
	ok(t, c.CuMemFreeAsync(*p, s))
	open()
	ok(t, c.CuStreamSynchronize(s))
	ok(t, c.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, arguments(uint64(*p), uint32(9)).list(), nil))
	want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuStreamSynchronize(s))
	driver.heal()
}

// Arguments may come in one buffer.
func TestLaunchExtra(t *testing.T) {
	c := inContext(t, 0)
	mod := loaded(t, c, probes)
	p := linear(t, c, 4096)
	f := functionOf(t, c, mod, "store")
	buffer := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, uint64(p)), 77)
	extra := extraOf(buffer, 12)
	ok(t, c.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, nil, extra.list()))
	word := make([]byte, 4)
	ok(t, c.CuMemcpyDtoH_v2(at(word), p, 4))
	require.EqualValues(t, 77, word[0])
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, arguments(uint64(p), uint32(1)).list(), extra.list()))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, nil, extraOf(buffer, 0).list()))
	want(t, sys.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, c.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, nil, extraOf(buffer, 13).list()))
	ok(t, c.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, nil, extraOf(buffer, 8).list()))
	ok(t, c.CuMemcpyDtoH_v2(at(word), p, 4))
	require.Zero(t, word[0])
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, nil, nil))
}

// A launch that the device cannot run is refused before anything runs.
func TestLaunchRefused(t *testing.T) {
	c := inContext(t, 0)
	mod := loaded(t, c, probes)
	f := functionOf(t, c, mod, "count")
	for _, d := range [][6]uint32{
		{0, 1, 1, 1, 1, 1}, {1, 0, 1, 1, 1, 1}, {1, 1, 0, 1, 1, 1}, {1, 1, 1, 0, 1, 1}, {1, 1, 1, 1, 0, 1}, {1, 1, 1, 1, 1, 0},
		{1 << 31, 1, 1, 1, 1, 1}, {1, 65536, 1, 1, 1, 1}, {1, 1, 65536, 1, 1, 1},
		{1, 1, 1, 1025, 1, 1}, {1, 1, 1, 1, 1025, 1}, {1, 1, 1, 1, 1, 65}, {1, 1, 1, 32, 33, 1},
	} {
		want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuLaunchKernel(f, d[0], d[1], d[2], d[3], d[4], d[5], 0, 0, nil, nil))
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 48<<10+1, 0, nil, nil))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuLaunchKernel(functionOf(t, c, mod, "small"), 1, 1, 1, 33, 1, 1, 0, 0, nil, nil))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuLaunchKernel(functionOf(t, c, mod, "exact"), 1, 1, 1, 16, 1, 1, 0, 0, nil, nil))
	ok(t, c.CuLaunchKernel(functionOf(t, c, mod, "exact"), 1, 1, 1, 8, 2, 1, 0, 0, nil, nil))
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, c.CuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, nil, nil))
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, c.CuLaunchKernel(12345, 1, 1, 1, 1, 1, 1, 0, 0, nil, nil))
	misused(t, 1)
	other := inContext(t, 1)
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, other.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, nil, nil))

	loose := new(sys.CUmodule)
	ok(t, c.CuModuleLoadData(loose, text2c(probes)))
	f = functionOf(t, c, *loose, "count")
	ok(t, c.CuModuleUnload(*loose))
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, c.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, nil, nil))
	want(t, sys.CUDA_ERROR_INVALID_HANDLE, c.CuModuleUnload(*loose))
	misused(t, 2)
}

// A kernel that goes wrong takes every context of the process with it.
func TestKernelFaults(t *testing.T) { // faults 47, 70
	for _, tc := range []struct {
		name   string
		kernel string
		offset uint64
		rights sys.CUmemAccess_flags
		want   sys.CUresult
		say    string
	}{
		{"write through a read-only mapping", "store", 0, readOnly, sys.CUDA_ERROR_ILLEGAL_ADDRESS, "illegal address"},
		{"no rights", "store", 0, 0, sys.CUDA_ERROR_ILLEGAL_ADDRESS, "line 12"},
		{"behind the end", "store", 2 * MiB, readWrite, sys.CUDA_ERROR_ILLEGAL_ADDRESS, "illegal address"},
		{"misaligned", "store", 2, readWrite, sys.CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned"},
		{"trap", "die", 0, readWrite, sys.CUDA_ERROR_LAUNCH_FAILED, "trap"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := inContext(t, 0)
			t.Cleanup(driver.heal)
			mod := loaded(t, c, probes)
			p, _ := buffer(t, 2*MiB, 0)
			ok(t, c.CuMemSetAccess(p, 2*MiB, accessTo(0, tc.rights), 1))
			ok(t, c.CuLaunchKernel(functionOf(t, c, mod, tc.kernel), 1, 1, 1, 1, 1, 1, 0, 0, arguments(uint64(p)+tc.offset, uint32(1)).list(), nil))
			want(t, tc.want, c.CuCtxSynchronize())
			want(t, tc.want, c.CuModuleLoadData(new(sys.CUmodule), text2c(probes)))
			require.ErrorContains(t, LastFault(), tc.say)
			driver.heal() // so that the module can be unloaded
		})
	}
}

// A kernel that never ends does so when another one loses the contexts.
func TestEndlessKernelEnds(t *testing.T) {
	c := inContext(t, 0)
	mod := loaded(t, c, probes)
	t.Cleanup(driver.heal)
	a, b := newStream(t, c, nonBlocking), newStream(t, c, nonBlocking)
	p := linear(t, c, 4096)
	ok(t, c.CuMemsetD8_v2(p, 0, 4096))
	ok(t, c.CuCtxSynchronize())
	ok(t, c.CuLaunchKernel(functionOf(t, c, mod, "spin"), 1, 1, 1, 1, 1, 1, 0, a, arguments(uint64(p)).list(), nil))
	ok(t, c.CuLaunchKernel(functionOf(t, c, mod, "die"), 1, 1, 1, 1, 1, 1, 0, b, nil, nil))
	want(t, sys.CUDA_ERROR_LAUNCH_FAILED, c.CuStreamSynchronize(b))
	driver.mu.Lock()
	spinning := driver.streams[a].tail
	driver.mu.Unlock()
	<-spinning.done
	want(t, sys.CUDA_ERROR_LAUNCH_FAILED, spinning.result)
	require.ErrorContains(t, LastFault(), "kernel die") // and not the one that was ended
	driver.heal()
}

// Kernels reach another device's memory as peers do.
func TestKernelOnPeer(t *testing.T) {
	c, other := inContext(t, 0), inContext(t, 1)
	f := functionOf(t, c, loaded(t, c, probes), "store")
	p := linear(t, other, 4096)
	ok(t, c.CuCtxEnablePeerAccess(other.Context(), 0))
	ok(t, c.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, arguments(uint64(p), uint32(3)).list(), nil))
	ok(t, c.CuCtxSynchronize())
	word := make([]byte, 4)
	ok(t, other.CuMemcpyDtoH_v2(at(word), p, 4))
	require.EqualValues(t, 3, word[0])
	ok(t, c.CuCtxDisablePeerAccess(other.Context()))
	ok(t, c.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, arguments(uint64(p), uint32(4)).list(), nil))
	want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuCtxSynchronize())
	driver.heal()
}

// Launches are captured, and a graph has its own copy of the arguments.
func TestCapturedLaunch(t *testing.T) {
	c := inContext(t, 0)
	mod := loaded(t, c, probes)
	f := functionOf(t, c, mod, "count")
	p, n := new(sys.CUdeviceptr), new(uintptr)
	ok(t, c.CuModuleGetGlobal_v2(p, n, mod, sys.CString("counter")))
	require.EqualValues(t, 8, *n)
	s := newStream(t, c, nonBlocking)
	ok(t, c.CuStreamBeginCapture_v2(s, sys.CU_STREAM_CAPTURE_MODE_RELAXED))
	for range 2 {
		ok(t, c.CuLaunchKernel(f, 4, 1, 1, 8, 1, 1, 0, s, nil, nil))
	}
	g, e, kind := new(sys.CUgraph), new(sys.CUgraphExec), new(sys.CUgraphNodeType)
	ok(t, c.CuStreamEndCapture(s, g))
	nodes, count := make([]sys.CUgraphNode, 2), new(uintptr)
	*count = 2
	ok(t, c.CuGraphGetNodes(*g, &nodes[0], count))
	ok(t, c.CuGraphNodeGetType(nodes[0], kind))
	require.Equal(t, sys.CU_GRAPH_NODE_TYPE_KERNEL, *kind)
	ok(t, c.CuGraphInstantiateWithFlags(e, *g, 0))
	for range 3 {
		ok(t, c.CuGraphLaunch(*e, s))
	}
	ok(t, c.CuStreamSynchronize(s))
	word := make([]byte, 8)
	ok(t, c.CuMemcpyDtoH_v2(at(word), *p, 8))
	require.EqualValues(t, 5+3*2*4*8*3, binary.LittleEndian.Uint64(word))
	ok(t, c.CuGraphExecDestroy(*e))
	node, params := new(sys.CUgraphNode), &sys.CUDA_KERNEL_NODE_PARAMS{Func: f, GridDimX: 1, GridDimY: 1, GridDimZ: 1, BlockDimX: 1, BlockDimY: 1, BlockDimZ: 1}
	ok(t, c.CuGraphAddKernelNode_v2(node, *g, &nodes[1], 1, params))
	ok(t, c.CuGraphInstantiateWithFlags(e, *g, 0))
	ok(t, c.CuGraphLaunch(*e, s))
	ok(t, c.CuStreamSynchronize(s))
	ok(t, c.CuMemcpyDtoH_v2(at(word), *p, 8))
	require.EqualValues(t, 5+3*2*4*8*4+3, binary.LittleEndian.Uint64(word))
	params.GridDimY = 0
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuGraphAddKernelNode_v2(node, *g, nil, 0, params))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuGraphAddKernelNode_v2(node, *g, nil, 0, nil))
	ok(t, c.CuGraphExecDestroy(*e))
	ok(t, c.CuGraphDestroy(*g))
}

// cuLaunchKernelEx takes attributes that make no difference here, and refuses
// what there is not.
func TestLaunchEx(t *testing.T) {
	c := inContext(t, 0)
	f := functionOf(t, c, loaded(t, c, probes), "count")
	config := func(attrs ...sys.CUlaunchAttribute) *sys.CUlaunchConfig {
		l := &sys.CUlaunchConfig{GridDimX: 1, GridDimY: 1, GridDimZ: 1, BlockDimX: 1024, BlockDimY: 1, BlockDimZ: 1}
		if l.NumAttrs = uint32(len(attrs)); len(attrs) > 0 {
			l.Attrs = &attrs[0]
		}
		return l
	}
	attribute := func(id sys.CUlaunchAttributeID, set func(*sys.CUlaunchAttributeValue)) sys.CUlaunchAttribute {
		a := sys.CUlaunchAttribute{Id: id}
		set(&a.Value)
		return a
	}
	cooperative := attribute(sys.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, func(v *sys.CUlaunchAttributeValue) { *v.Cooperative() = 1 })
	priority := attribute(sys.CU_LAUNCH_ATTRIBUTE_PRIORITY, func(v *sys.CUlaunchAttributeValue) { *v.Priority() = -1 })
	cluster := attribute(sys.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, func(v *sys.CUlaunchAttributeValue) {
		*v.ClusterDim() = sys.CUlaunchAttributeValue_clusterDim{X: 2, Y: 1, Z: 1}
	})
	ok(t, c.CuLaunchKernelEx(config(), f, nil, nil))
	ok(t, c.CuLaunchKernelEx(config(cooperative, priority), f, nil, nil))
	large := config(cooperative)
	large.GridDimX = 9
	want(t, sys.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, c.CuLaunchKernelEx(large, f, nil, nil))
	want(t, sys.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, c.CuLaunchCooperativeKernel(f, 9, 1, 1, 1024, 1, 1, 0, 0, nil))
	ok(t, c.CuLaunchCooperativeKernel(f, 8, 1, 1, 1024, 1, 1, 0, 0, nil))
	want(t, sys.CUDA_ERROR_NOT_SUPPORTED, c.CuLaunchKernelEx(config(cluster), f, nil, nil))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuLaunchKernelEx(config(sys.CUlaunchAttribute{Id: 99}), f, nil, nil))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuLaunchKernelEx(nil, f, nil, nil))
}

// Blocks of large local memory run, but not many at once, and so cannot all wait
// for each other.
func TestLaunchOfMuchMemory(t *testing.T) {
	c := inContext(t, 0)
	f := functionOf(t, c, loaded(t, c, `.version 7.4
.target sm_75
.address_size 64
.visible .entry large(.param .u64 p) {
	.local .align 4 .b8 own[524288];
	.reg .b64 %rd<2>; .reg .b32 %r<3>;
	ld.param.u64 %rd1, [p];
	st.local.u32 [own+524284], 1;
	ld.local.u32 %r1, [own+524284];
	red.global.add.u32 [%rd1], %r1;
	ret;
}
`), "large")
	p := linear(t, c, 4096)
	ok(t, c.CuMemsetD8_v2(p, 0, 4096))
	args := arguments(uint64(p))
	want(t, sys.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, c.CuLaunchCooperativeKernel(f, 40, 1, 1, 64, 1, 1, 0, 0, args.list()))
	ok(t, c.CuLaunchCooperativeKernel(f, 4, 1, 1, 64, 1, 1, 0, 0, args.list()))
	ok(t, c.CuLaunchKernel(f, 40, 1, 1, 64, 1, 1, 0, 0, args.list(), nil))
	word := make([]byte, 4)
	ok(t, c.CuMemcpyDtoH_v2(at(word), p, 4))
	require.EqualValues(t, 44*64, binary.LittleEndian.Uint32(word))
}

// Dynamic shared memory begins behind the kernel's own, and is bounded.
func TestDynamicShared(t *testing.T) {
	c := inContext(t, 0)
	f := functionOf(t, c, loaded(t, c, probes), "shared")
	p := linear(t, c, 4096)
	get := func(a sys.CUfunction_attribute) int32 {
		v := new(int32)
		ok(t, c.CuFuncGetAttribute(v, a, f))
		return *v
	}
	require.EqualValues(t, 64, get(sys.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES))
	require.EqualValues(t, 48<<10-64, get(sys.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES))
	run := func(n uint32) sys.CUresult {
		return c.CuLaunchKernel(f, 1, 1, 1, 1, 1, 1, n, 0, arguments(uint64(p)).list(), nil)
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, run(64<<10))
	most := int32(227<<10 - 64)
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuFuncSetAttribute(f, sys.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most+1))
	ok(t, c.CuFuncSetAttribute(f, sys.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most))
	ok(t, run(64<<10))
	word := make([]byte, 4)
	ok(t, c.CuMemcpyDtoH_v2(at(word), p, 4))
	require.Equal(t, binary.LittleEndian.AppendUint32(nil, 64<<10), word)
	ok(t, run(0)) // writes where there is none
	want(t, sys.CUDA_ERROR_ILLEGAL_ADDRESS, c.CuCtxSynchronize())
	driver.heal()
}
