package conformance

import (
	"fmt"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
)

const (
	noPeer       = sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
	notEnabled   = sys.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
	noAffinity   = sys.CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
	notPermitted = sys.CUDA_ERROR_NOT_PERMITTED
	noLimit      = sys.CUDA_ERROR_UNSUPPORTED_LIMIT
)

// has skips n checks where the driver lacks a symbol.
func has(t testing.TB, symbol string, n int) bool {
	t.Helper()
	there := raw(t).Library().Has(symbol)
	if !there {
		skip(t, n, "the driver has no "+symbol)
	}
	return there
}

// createdContext is a context of cuCtxCreate on a device.
func createdContext(t testing.TB, flags uint32, dev sys.CUdevice) sys.Caller {
	t.Helper()
	c, ctx := raw(t), new(sys.CUcontext)
	ok(t, c.CuCtxCreate_v2(ctx, flags, dev))
	t.Cleanup(func() { ok(t, c.CuCtxDestroy_v2(*ctx)) })
	return c.With(*ctx)
}

func TestC22_CreateArguments(t *testing.T) {
	c, ctx := raw(t), new(sys.CUcontext)
	for _, flags := range []uint32{3, 5, 256, 1 << 20} {
		check(t, fmt.Sprint("create with flags ", flags), invalid, c.CuCtxCreate_v2(ctx, flags, 0))
	}
	check(t, "create on device 99", noDevice, c.CuCtxCreate_v2(ctx, 0, 99))
	check(t, "create for nothing", invalid, c.CuCtxCreate_v2(nil, 0, 0))
	check(t, "with an affinity that is not there", invalid, c.CuCtxCreate_v3(ctx, nil, 1, 0, 0))
	check(t, "with an affinity", noAffinity, c.CuCtxCreate_v3(ctx, new(sys.CUexecAffinityParam), 1, 0, 0))
	check(t, "nothing was made", 0, uintptr(*ctx))
	check(t, "destroy 0", invalid, c.CuCtxDestroy_v2(0))
	check(t, "destroy the primary context", noContext, c.CuCtxDestroy_v2(inContext(t).Context()))
}

func TestC22_CreatedContext(t *testing.T) {
	c, v := createdContext(t, 0, 0), new(uint32)
	check(t, "its API version", success, c.CuCtxGetApiVersion(c.Context(), v))
	check(t, "is", 3020, *v)
	check(t, "that it is not the primary one", true, c.Context() != inContext(t).Context())
	if !has(t, "cuCtxGetId", 2) {
		return
	}
	a, b := new(uint64), new(uint64)
	check(t, "an id", success, c.CuCtxGetId(c.Context(), a))
	ok(t, c.CuCtxGetId(inContext(t).Context(), b))
	check(t, "that it is no other's", true, *a != *b)
}

// Things of one context in another of the same device.
func TestC22_MixedContexts(t *testing.T) {
	c, other := inContext(t), createdContext(t, 0, 0)
	p, s, e := plain(t, other, MiB), stream(t, other), event(t, other, 0)
	check(t, "a set of the other's memory", success, c.CuMemsetD8_v2(p, 1, MiB))
	check(t, "a copy of it", success, c.CuMemcpyDtoD_v2(plain(t, c, MiB), p, MiB))
	check(t, "the end of that", success, c.CuCtxSynchronize())
	check(t, "the other's stream", success, c.CuStreamQuery(s))
	check(t, "the other's event", success, c.CuEventQuery(e))
	check(t, "recorded here", noHandle, c.CuEventRecord(e, 0))
	check(t, "awaited here", success, c.CuStreamWaitEvent(0, e, 0))
	q := new(sys.CUdeviceptr)
	ok(t, other.CuMemAlloc_v2(q, MiB))
	check(t, "freed here", success, c.CuMemFree_v2(*q))
}

var createdContexts = alone("created contexts",
	row{what: "made and destroyed in the ABI of CUDA 2", want: story(success, success, success), ask: func(t testing.TB) any {
		c, ctx := raw(t), new(sys.CUcontext)
		r := c.CuCtxCreate(ctx, 0, 0)
		return story(r, c.CuCtxGetApiVersion(*ctx, new(uint32)), c.CuCtxDestroy(*ctx))
	}},
	row{what: "the API version of that", want: 3010, ask: func(t testing.TB) any {
		c, ctx, v := raw(t), new(sys.CUcontext), new(uint32)
		ok(t, c.CuCtxCreate(ctx, 0, 0))
		ok(t, c.CuCtxGetApiVersion(*ctx, v))
		return *v
	}},
	row{what: "destroyed while it is current", want: 0, ask: func(t testing.TB) any {
		c, ctx := raw(t), new(sys.CUcontext)
		ok(t, c.CuCtxCreate_v2(ctx, 0, 0))
		ok(t, c.CuCtxSetCurrent(*ctx))
		ok(t, c.CuCtxDestroy_v2(*ctx))
		return uintptr(current(t))
	}},
	row{what: "set current afterwards, use, push", want: story(success, destroyed, success), ask: func(t testing.TB) any {
		c, ctx := raw(t), new(sys.CUcontext)
		ok(t, c.CuCtxCreate_v2(ctx, 0, 0))
		ok(t, c.CuCtxDestroy_v2(*ctx))
		return story(c.CuCtxSetCurrent(*ctx), c.CuCtxSynchronize(), c.CuCtxPushCurrent_v2(*ctx))
	}},
	row{what: "destroyed again", want: varies, id: "freed-context", soft: destroyed, ask: func(t testing.TB) any {
		c, ctx := raw(t), new(sys.CUcontext)
		ok(t, c.CuCtxCreate_v2(ctx, 0, 0))
		ok(t, c.CuCtxDestroy_v2(*ctx))
		return c.CuCtxDestroy_v2(*ctx)
	}},
	row{what: "destroy 0x1234", want: crashes, id: "no-context", soft: noContext, ask: func(t testing.TB) any {
		return raw(t).CuCtxDestroy_v2(0x1234)
	}},
	row{what: "attach, detach, use, detach, use", want: story(success, success, success, success, destroyed), ask: func(t testing.TB) any {
		c, ctx := raw(t), new(sys.CUcontext)
		ok(t, c.CuCtxCreate_v2(ctx, 0, 0))
		in := c.With(*ctx)
		return story(in.CuCtxAttach(new(sys.CUcontext), 0), in.CuCtxDetach(*ctx), in.CuCtxSynchronize(),
			in.CuCtxDetach(*ctx), in.CuCtxSynchronize())
	}},
	row{what: "attach with flags", want: invalid, ask: func(t testing.TB) any {
		return createdContext(t, 0, 0).CuCtxAttach(new(sys.CUcontext), 1)
	}},
	asked("detach the primary context, use", story(success, success), func(t testing.TB, c sys.Caller) any { return story(c.CuCtxDetach(c.Context()), c.CuCtxSynchronize()) }),
	row{what: "reset of the primary context leaves it", want: success, ask: func(t testing.TB) any {
		c := createdContext(t, 0, 0)
		_, _ = primary(t)
		ok(t, c.CuDevicePrimaryCtxReset_v2(0))
		return c.CuCtxSynchronize()
	}},
	row{what: "old flags of an active primary context", want: sys.CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, ask: func(t testing.TB) any {
		c, _ := primary(t)
		return c.CuDevicePrimaryCtxSetFlags(0, 4)
	}},
)

func TestC22_EndOfCreatedContext(t *testing.T) { createdContexts.check(t) }

func TestC23_ContextFlags(t *testing.T) {
	c, flags := createdContext(t, 2, 0), new(uint32)
	shown := func(c sys.Caller) any {
		if r := c.CuCtxGetFlags(flags); r != success {
			return r
		}
		return *flags
	}
	check(t, "those it was made with", 2, shown(c))
	check(t, "flags for nothing", invalid, c.CuCtxGetFlags(nil))
	if !has(t, "cuCtxSetFlags", 9) {
		return
	}
	for set, want := range map[uint32]uint32{1: 1, 4: 4, 8: 0, 16: 16, 32: 0, 128: 128} {
		ok(t, c.CuCtxSetFlags(set))
		check(t, fmt.Sprint("after setting ", set), want, shown(c))
	}
	check(t, "set two ways of waiting", invalid, c.CuCtxSetFlags(3))
	check(t, "set what does not exist", invalid, c.CuCtxSetFlags(256))
	mapped := createdContext(t, 8, 0)
	ok(t, mapped.CuCtxSetFlags(1))
	check(t, "mapped host memory stays", 9, shown(mapped))
}

func TestC24_Limits(t *testing.T) {
	c, v := createdContext(t, 0, 0), new(uintptr)
	for _, x := range []struct {
		limit sys.CUlimit
		set   uintptr
		want  any
	}{
		{sys.CU_LIMIT_STACK_SIZE, 2048, 2048},
		{sys.CU_LIMIT_STACK_SIZE, 1, 16},
		{sys.CU_LIMIT_STACK_SIZE, 0, 0},
		{sys.CU_LIMIT_STACK_SIZE, 1 << 40, invalid},
		{sys.CU_LIMIT_PRINTF_FIFO_SIZE, 1, 512 * KiB},
		{sys.CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 40, 2 * GiB},
		{sys.CU_LIMIT_MALLOC_HEAP_SIZE, 1, 4 * MiB},
		{sys.CU_LIMIT_MALLOC_HEAP_SIZE, 16 * MiB, 16 * MiB},
		{sys.CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 2, noLimit},
		{sys.CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 1, 32},
		{sys.CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 1000, 1000},
		{sys.CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 1, 1},
		{sys.CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 128, 128},
		{sys.CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 1000, invalid},
		{sys.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0, 0},
		{sys.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 1 << 40, invalid},
		{sys.CU_LIMIT_SHMEM_SIZE, 1024, notPermitted},
		{sys.CU_LIMIT_CIG_ENABLED, 1, notPermitted},
		{sys.CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED, 0, noLimit},
		{sys.CU_LIMIT_MAX, 0, invalid},
		{99, 0, invalid},
	} {
		set := func() any {
			if r := c.CuCtxSetLimit(x.limit, x.set); r != success {
				return r
			}
			ok(t, c.CuCtxGetLimit(v, x.limit))
			return *v
		}
		check(t, fmt.Sprintf("%v set to %d", x.limit, x.set), x.want, set())
	}
	check(t, "a limit that is not there", noLimit, c.CuCtxGetLimit(v, sys.CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH))
	check(t, "limit 99", invalid, c.CuCtxGetLimit(v, 99))
	check(t, "a limit for nothing", invalid, c.CuCtxGetLimit(nil, 0))
	other := createdContext(t, 0, 0)
	ok(t, other.CuCtxGetLimit(v, sys.CU_LIMIT_STACK_SIZE))
	check(t, "the stack of another context", 1024, *v)
	ok(t, other.CuCtxGetLimit(v, sys.CU_LIMIT_MAX_L2_FETCH_GRANULARITY))
	check(t, "its fetches", 64, *v)
	ok(t, other.CuCtxGetLimit(v, sys.CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT))
	check(t, "its pending launches", 2048, *v)
}

func TestC24_Preferences(t *testing.T) {
	c, cache, banks := createdContext(t, 0, 0), new(sys.CUfunc_cache), new(sys.CUsharedconfig)
	for x := range sys.CUfunc_cache(4) {
		ok(t, c.CuCtxSetCacheConfig(x))
		ok(t, c.CuCtxGetCacheConfig(cache))
		check(t, fmt.Sprint("preference ", uint32(x)), x, *cache)
	}
	check(t, "preference 4", invalid, c.CuCtxSetCacheConfig(4))
	check(t, "the preference for nothing", invalid, c.CuCtxGetCacheConfig(nil))
	for x := range sys.CUsharedconfig(3) {
		ok(t, c.CuCtxSetSharedMemConfig(x))
		ok(t, c.CuCtxGetSharedMemConfig(banks))
		check(t, fmt.Sprint("banks ", uint32(x)), sys.CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE, *banks)
	}
	check(t, "banks 3", invalid, c.CuCtxSetSharedMemConfig(3))
	check(t, "persisting lines", success, c.CuCtxResetPersistingL2Cache())
	affinity := new(sys.CUexecAffinityParam)
	check(t, "the multiprocessors", success, c.CuCtxGetExecAffinity(affinity, 0))
	all := new(int32)
	ok(t, c.CuDeviceGetAttribute(all, sys.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0))
	check(t, "are all", *all, affinity.ParamSmCount().Val)
	check(t, "an affinity of another type", noAffinity, c.CuCtxGetExecAffinity(affinity, 1))
	check(t, "an affinity for nothing", invalid, c.CuCtxGetExecAffinity(nil, 0))
	supported := new(int32)
	for kind := range sys.CUexecAffinityType(3) {
		*supported = 7
		ok(t, c.CuDeviceGetExecAffinitySupport(supported, kind, 0))
		check(t, fmt.Sprint("support of affinity ", uint32(kind)), 0, *supported)
	}
}

func TestC25_NoPeer(t *testing.T) {
	c, own, v := inContext(t), createdContext(t, 0, 0), new(int32)
	check(t, "enable access to itself", noPeer, c.CuCtxEnablePeerAccess(c.Context(), 0))
	check(t, "enable access to the same device", noPeer, c.CuCtxEnablePeerAccess(own.Context(), 0))
	check(t, "enable access to nothing", noContext, c.CuCtxEnablePeerAccess(0, 0))
	check(t, "enable access with flags", invalid, c.CuCtxEnablePeerAccess(own.Context(), 1))
	check(t, "disable access to itself", notEnabled, c.CuCtxDisablePeerAccess(c.Context()))
	check(t, "disable access to the same device", notEnabled, c.CuCtxDisablePeerAccess(own.Context()))
	check(t, "disable access to nothing", noContext, c.CuCtxDisablePeerAccess(0))
	for a := range sys.CUdevice_P2PAttribute(7) {
		check(t, fmt.Sprintf("%v of a device and itself", a), noDevice, c.CuDeviceGetP2PAttribute(v, a, 0, 0))
	}
	check(t, "an attribute for nothing", invalid, c.CuDeviceGetP2PAttribute(nil, 1, 0, 0))
	check(t, "an attribute of device 99", noDevice, c.CuDeviceGetP2PAttribute(v, 1, 0, 99))
}

func TestC25_Peer(t *testing.T) {
	if !hasDevices(t, 2, 20) {
		return
	}
	c, peer, v := inContext(t), inContextOf(t, 1), new(int32)
	check(t, "whether it can", success, c.CuDeviceCanAccessPeer(v, 0, 1))
	check(t, "it can", 1, *v)
	check(t, "as an attribute", success, c.CuDeviceGetP2PAttribute(v, sys.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1))
	check(t, "it can, as an attribute", 1, *v)
	check(t, "attribute 0", invalid, c.CuDeviceGetP2PAttribute(v, 0, 0, 1))
	check(t, "attribute 6", invalid, c.CuDeviceGetP2PAttribute(v, 6, 0, 1))

	p, q := plain(t, peer, MiB), plain(t, c, MiB)
	check(t, "a copy without access", success, c.CuMemcpyDtoD_v2(q, p, MiB))
	check(t, "a set without access", invalid, c.CuMemsetD8_v2(p, 1, MiB))
	check(t, "a value without access", invalid, writeValue(c, 0, p, 1))
	check(t, "disable before", notEnabled, c.CuCtxDisablePeerAccess(peer.Context()))
	check(t, "enable", success, c.CuCtxEnablePeerAccess(peer.Context(), 0))
	check(t, "enable again", sys.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, c.CuCtxEnablePeerAccess(peer.Context(), 0))
	check(t, "with flags", invalid, c.CuCtxEnablePeerAccess(peer.Context(), 1))
	check(t, "the other way", notEnabled, peer.CuCtxDisablePeerAccess(c.Context()))
	check(t, "a set with access", success, c.CuMemsetD8_v2(p, 1, MiB))
	check(t, "a value with access", success, writeValue(c, 0, p, 1))
	check(t, "the end of that", success, c.CuCtxSynchronize())
	check(t, "disable", success, c.CuCtxDisablePeerAccess(peer.Context()))
	check(t, "a value after that", invalid, writeValue(c, 0, p, 1))
	check(t, "disable again", notEnabled, c.CuCtxDisablePeerAccess(peer.Context()))
}
