package soft

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

// Limits take what they are set to, or the nearest that they can do, as the
// H200's do.
func TestLimits(t *testing.T) {
	const invalid, fixed, missing = sys.CUDA_ERROR_INVALID_VALUE, sys.CUDA_ERROR_NOT_PERMITTED, sys.CUDA_ERROR_UNSUPPORTED_LIMIT
	c := newContext(t, 0)
	get := func(l sys.CUlimit) (v uintptr) {
		ok(t, c.CuCtxGetLimit(&v, l))
		return v
	}
	for _, s := range []struct {
		limit   sys.CUlimit
		initial uintptr
		set     uintptr
		becomes uintptr
		result  sys.CUresult
	}{
		{sys.CU_LIMIT_STACK_SIZE, 1024, 1000, 1008, 0},
		{sys.CU_LIMIT_STACK_SIZE, 1008, 0, 0, 0},
		{sys.CU_LIMIT_STACK_SIZE, 0, 1 << 40, 0, invalid},
		{sys.CU_LIMIT_PRINTF_FIFO_SIZE, 8650752, 1, 512 << 10, 0},
		{sys.CU_LIMIT_PRINTF_FIFO_SIZE, 512 << 10, 1 << 40, 2 << 30, 0},
		{sys.CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20, 1, 4 << 20, 0},
		{sys.CU_LIMIT_MALLOC_HEAP_SIZE, 4 << 20, 16 << 20, 16 << 20, 0},
		{sys.CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2048, 0, 32, 0},
		{sys.CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 64, 128, 128, 0},
		{sys.CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 128, 1000, 128, invalid},
		{sys.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 3 * persistingUnit, 1, persistingUnit, 0},
		{sys.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, persistingUnit, 1 << 40, persistingUnit, invalid},
		{sys.CU_LIMIT_SHMEM_SIZE, sharedOptIn, 1, sharedOptIn, fixed},
		{sys.CU_LIMIT_CIG_ENABLED, 0, 1, 0, fixed},
	} {
		require.Equal(t, s.initial, get(s.limit), s.limit)
		want(t, s.result, c.CuCtxSetLimit(s.limit, s.set))
		require.Equal(t, s.becomes, get(s.limit), s.limit)
	}
	v := new(uintptr)
	for _, l := range []sys.CUlimit{sys.CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, sys.CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED} {
		want(t, missing, c.CuCtxGetLimit(v, l))
		want(t, missing, c.CuCtxSetLimit(l, 0))
	}
	for _, l := range []sys.CUlimit{sys.CU_LIMIT_MAX, 99} {
		want(t, invalid, c.CuCtxGetLimit(v, l))
		want(t, invalid, c.CuCtxSetLimit(l, 0))
	}
	want(t, invalid, c.CuCtxGetLimit(nil, 0))
	fresh := newContext(t, 0)
	ok(t, fresh.CuCtxGetLimit(v, sys.CU_LIMIT_STACK_SIZE))
	require.EqualValues(t, 1024, *v, "each context has its own")
}

func TestCacheConfig(t *testing.T) {
	c := newContext(t, 0)
	cache, banks := new(sys.CUfunc_cache), new(sys.CUsharedconfig)
	for v := sys.CU_FUNC_CACHE_PREFER_NONE; v <= sys.CU_FUNC_CACHE_PREFER_EQUAL; v++ {
		ok(t, c.CuCtxSetCacheConfig(v))
		ok(t, c.CuCtxGetCacheConfig(cache))
		require.Equal(t, v, *cache)
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuCtxSetCacheConfig(4))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuCtxGetCacheConfig(nil))
	for v := range sys.CUsharedconfig(3) {
		ok(t, c.CuCtxSetSharedMemConfig(v))
		ok(t, c.CuCtxGetSharedMemConfig(banks))
		require.Equal(t, sys.CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE, *banks)
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuCtxSetSharedMemConfig(3))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuCtxGetSharedMemConfig(nil))
	ok(t, c.CuCtxResetPersistingL2Cache())
	affinity := new(sys.CUexecAffinityParam)
	ok(t, c.CuCtxGetExecAffinity(affinity, sys.CU_EXEC_AFFINITY_TYPE_SM_COUNT))
	require.EqualValues(t, 4, affinity.ParamSmCount().Val)
	want(t, sys.CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, c.CuCtxGetExecAffinity(affinity, 1))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuCtxGetExecAffinity(nil, 0))
}

// Flags, as they show in the context and in the state of the primary one.
func TestContextFlags(t *testing.T) {
	c := inContext(t, 0)
	shown := func() [2]uint32 {
		var flags, state uint32
		ok(t, c.CuCtxGetFlags(&flags))
		ok(t, c.CuDevicePrimaryCtxGetState(0, &state, new(int32)))
		return [2]uint32{flags, state}
	}
	require.Equal(t, [2]uint32{8, 0}, shown())
	for _, s := range []struct {
		set  func(uint32) sys.CUresult
		arg  uint32
		want [2]uint32
	}{
		{c.CuCtxSetFlags, 1, [2]uint32{9, 0}},
		{c.CuCtxSetFlags, 8, [2]uint32{8, 0}},
		{c.CuCtxSetFlags, 128 | 4, [2]uint32{140, 128}},
		{c.CuCtxSetFlags, 0, [2]uint32{8, 0}},
		{func(f uint32) sys.CUresult { return c.CuDevicePrimaryCtxSetFlags_v2(0, f) }, 2, [2]uint32{10, 2}},
		{func(f uint32) sys.CUresult { return c.CuDevicePrimaryCtxSetFlags_v2(0, f) }, 16, [2]uint32{24, 16}},
	} {
		ok(t, s.set(s.arg))
		require.Equal(t, s.want, shown())
	}
	for _, bad := range []uint32{3, 5, 256, 1 << 20} {
		want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuCtxSetFlags(bad))
		want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDevicePrimaryCtxSetFlags_v2(0, bad))
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDevicePrimaryCtxSetFlags_v2(0, uint32(sys.CU_CTX_MAP_HOST)))
	want(t, sys.CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, c.CuDevicePrimaryCtxSetFlags(0, 0))
	require.Equal(t, [2]uint32{24, 16}, shown())
	ok(t, c.CuDevicePrimaryCtxReset_v2(0))
	state, active := new(uint32), new(int32)
	ok(t, c.CuDevicePrimaryCtxGetState(0, state, active))
	require.Zero(t, *state, "they go with the context")
	require.Zero(t, *active)
	ok(t, c.CuDevicePrimaryCtxSetFlags(0, 0))
}

// A created context's flags, and those set later.
func TestCreatedContextFlags(t *testing.T) {
	c := initialised(t)
	for _, s := range []struct{ made, set, want uint32 }{
		{0, 1, 1}, {0, 8, 0}, {8, 1, 9}, {0, 16, 16}, {0, 32, 0}, {32, 0, 0}, {0, 64, 0}, {0, 128, 128}, {4, 0, 0},
	} {
		ctx, flags := new(sys.CUcontext), new(uint32)
		ok(t, c.CuCtxCreate_v2(ctx, s.made, 0))
		ok(t, c.With(*ctx).CuCtxGetFlags(flags))
		require.Equal(t, s.made, *flags)
		ok(t, c.With(*ctx).CuCtxSetFlags(s.set))
		want(t, sys.CUDA_ERROR_INVALID_VALUE, c.With(*ctx).CuCtxSetFlags(3))
		ok(t, c.With(*ctx).CuCtxGetFlags(flags))
		require.Equal(t, s.want, *flags, "%+v", s)
		ok(t, c.CuCtxDestroy_v2(*ctx))
	}
}

// Peer access goes one way, between contexts of two devices, and ends with
// either.
func TestPeerAccess(t *testing.T) {
	c, peer, own := inContext(t, 0), newContext(t, 1), newContext(t, 0)
	for _, h := range []sys.CUcontext{c.Context(), own.Context()} {
		want(t, sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, c.CuCtxEnablePeerAccess(h, 0))
		want(t, sys.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, c.CuCtxDisablePeerAccess(h))
	}
	want(t, sys.CUDA_ERROR_INVALID_CONTEXT, c.CuCtxEnablePeerAccess(0, 0))
	want(t, sys.CUDA_ERROR_INVALID_CONTEXT, c.CuCtxDisablePeerAccess(0))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuCtxEnablePeerAccess(peer.Context(), 1))
	ok(t, c.CuCtxEnablePeerAccess(peer.Context(), 0))
	want(t, sys.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, c.CuCtxEnablePeerAccess(peer.Context(), 0))
	want(t, sys.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, peer.CuCtxDisablePeerAccess(c.Context()))
	ok(t, c.CuCtxDisablePeerAccess(peer.Context()))
	want(t, sys.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, c.CuCtxDisablePeerAccess(peer.Context()))

	p := linear(t, peer, 4096)
	ok(t, c.CuMemcpyDtoD_v2(linear(t, c, 4096), p, 4096)) // copies do without
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemsetD8_v2(p, 1, 4096))
	ok(t, own.CuCtxEnablePeerAccess(peer.Context(), 0)) // not for c
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemsetD8_v2(p, 1, 4096))
	ok(t, c.CuCtxEnablePeerAccess(peer.Context(), 0))
	ok(t, c.CuMemsetD8_v2(p, 1, 4096))
	ok(t, c.CuCtxSynchronize())
	ok(t, c.CuCtxDisablePeerAccess(peer.Context()))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemsetD8_v2(p, 1, 4096))

	short := new(sys.CUcontext)
	ok(t, c.CuCtxCreate_v2(short, 0, 1))
	ok(t, c.CuCtxEnablePeerAccess(*short, 0))
	ok(t, c.CuCtxDestroy_v2(*short))
	want(t, sys.CUDA_ERROR_CONTEXT_IS_DESTROYED, c.CuCtxEnablePeerAccess(*short, 0))
	want(t, sys.CUDA_ERROR_CONTEXT_IS_DESTROYED, c.CuCtxDisablePeerAccess(*short))
	driver.mu.Lock()
	defer driver.mu.Unlock()
	require.Empty(t, driver.contexts[c.Context()].peers)
}

func TestP2PAttributes(t *testing.T) {
	c := initialised(t)
	v := new(int32)
	for a, yes := range map[sys.CUdevice_P2PAttribute]int32{1: 0, 2: 1, 3: 0, 4: 0, 5: 0} {
		ok(t, c.CuDeviceGetP2PAttribute(v, a, 0, 1))
		require.Equal(t, yes, *v, a)
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetP2PAttribute(v, 0, 0, 1))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetP2PAttribute(v, 6, 0, 1))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetP2PAttribute(nil, 2, 0, 0))
	want(t, sys.CUDA_ERROR_INVALID_DEVICE, c.CuDeviceGetP2PAttribute(v, 2, 0, 0))
	want(t, sys.CUDA_ERROR_INVALID_DEVICE, c.CuDeviceGetP2PAttribute(v, 2, 0, 7))
	for _, kind := range []sys.CUexecAffinityType{0, 1, 2} {
		*v = 7
		ok(t, c.CuDeviceGetExecAffinitySupport(v, kind, 0))
		require.Zero(t, *v)
	}
	prop := new(sys.CUdevprop)
	ok(t, c.CuDeviceGetProperties(prop, 0))
	require.Equal(t, [3]int32{1024, 1024, 64}, prop.MaxThreadsDim)
	require.EqualValues(t, 32, prop.SIMDWidth)
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetProperties(nil, 0))
}

// Texts that are PCI addresses, and texts that are not.
func TestPCIAddresses(t *testing.T) {
	c := initialised(t)
	dev := new(sys.CUdevice)
	for text, r := range map[string]sys.CUresult{
		"0000:02:00.0": 0, "02:00.0": 0, "0000:02:00": 0, "00000000:02:00.0": 0, " 0000:02:00.0": 0, "0000:02:00.0x": 0,
		"0000:ff:1f.0": sys.CUDA_ERROR_INVALID_DEVICE, "0001:02:00.0": sys.CUDA_ERROR_INVALID_DEVICE,
		"02:00": sys.CUDA_ERROR_INVALID_VALUE, "": sys.CUDA_ERROR_INVALID_VALUE, "garbage": sys.CUDA_ERROR_INVALID_VALUE, "0000": sys.CUDA_ERROR_INVALID_VALUE,
		"fffffffff:02:00.0": sys.CUDA_ERROR_INVALID_VALUE,
	} {
		*dev = -5
		require.Equal(t, r, c.CuDeviceGetByPCIBusId(dev, sys.CString(text)), text)
		require.Equal(t, r == 0, *dev == 1, text)
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetByPCIBusId(dev, nil))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetByPCIBusId(nil, sys.CString("02:00.0")))
	b := make([]byte, 13)
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuDeviceGetPCIBusId(&b[0], 12, 0))
	require.Equal(t, "0000:01:00.", sys.GoString(&b[0], 13))
	ok(t, c.CuDeviceGetPCIBusId(&b[0], 13, 0))
	require.Equal(t, "0000:01:00.0", sys.GoString(&b[0], 13))
}
