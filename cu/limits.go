package cu

import (
	"github.com/gpufd/gpufd/cu/sys"
)

// A Limit names something that a context allots to kernels.
type Limit sys.CUlimit

// The limits of a context, in bytes unless said otherwise. Not every device has
// every limit.
const (
	LimitStackSize                    = Limit(sys.CU_LIMIT_STACK_SIZE)                       // stack of each thread
	LimitPrintfFIFOSize               = Limit(sys.CU_LIMIT_PRINTF_FIFO_SIZE)                 // buffer of the device's printf
	LimitMallocHeapSize               = Limit(sys.CU_LIMIT_MALLOC_HEAP_SIZE)                 // heap of the device's malloc
	LimitDevRuntimeSyncDepth          = Limit(sys.CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH)           // how deep kernels launched by kernels may synchronise; not since compute capability 9.0
	LimitDevRuntimePendingLaunchCount = Limit(sys.CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT) // pending launches by kernels, a number
	LimitMaxL2FetchGranularity        = Limit(sys.CU_LIMIT_MAX_L2_FETCH_GRANULARITY)         // how much the L2 cache fetches at once, 0 to 128: a hint
	LimitPersistingL2CacheSize        = Limit(sys.CU_LIMIT_PERSISTING_L2_CACHE_SIZE)         // part of the L2 cache for persisting accesses
	LimitShmemSize                    = Limit(sys.CU_LIMIT_SHMEM_SIZE)                       // shared memory of a block; can be set in graphics contexts only
	LimitCIGEnabled                   = Limit(sys.CU_LIMIT_CIG_ENABLED)                      // whether the context is a graphics context's companion: 0 or 1, not to be set
	LimitCIGShmemFallbackEnabled      = Limit(sys.CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED)       // whether such a context makes do with less shared memory: 0 or 1
)

// String gives the limit's name in C.
func (l Limit) String() string { return sys.CUlimit(l).String() }

// Limit returns one of the context's limits (cuCtxGetLimit).
// [ErrUnsupportedLimit]: the device does not have it; [ErrInvalidValue]: the
// driver does not know it.
func (c *Context) Limit(l Limit) (uint64, error) {
	v := new(uintptr)
	err := c.run("cuCtxGetLimit", func(call sys.Caller) sys.CUresult { return call.CuCtxGetLimit(v, sys.CUlimit(l)) })
	return uint64(*v), err
}

// SetLimit sets one of the context's limits (cuCtxSetLimit). The driver may take
// another value, which Limit returns. Errors: [ErrUnsupportedLimit];
// [ErrInvalidValue] for too large a value; [ErrNotPermitted] for a limit that
// cannot be set; [ErrOutOfMemory].
func (c *Context) SetLimit(l Limit, value uint64) error {
	return c.run("cuCtxSetLimit", func(call sys.Caller) sys.CUresult {
		return call.CuCtxSetLimit(sys.CUlimit(l), uintptr(value))
	})
}

// A CacheConfig is a preference how to divide the memory that some devices use
// for both L1 cache and shared memory. The driver still gives a kernel what it
// needs.
type CacheConfig sys.CUfunc_cache

// The preferences.
const (
	CachePreferNone   = CacheConfig(sys.CU_FUNC_CACHE_PREFER_NONE)   // no preference, the default
	CachePreferShared = CacheConfig(sys.CU_FUNC_CACHE_PREFER_SHARED) // more shared memory
	CachePreferL1     = CacheConfig(sys.CU_FUNC_CACHE_PREFER_L1)     // more L1 cache
	CachePreferEqual  = CacheConfig(sys.CU_FUNC_CACHE_PREFER_EQUAL)  // half and half
)

// String gives the preference's name in C.
func (p CacheConfig) String() string { return sys.CUfunc_cache(p).String() }

// CacheConfig returns the context's preference (cuCtxGetCacheConfig).
func (c *Context) CacheConfig() (CacheConfig, error) {
	v := new(sys.CUfunc_cache)
	err := c.run("cuCtxGetCacheConfig", func(call sys.Caller) sys.CUresult { return call.CuCtxGetCacheConfig(v) })
	return CacheConfig(*v), err
}

// SetCacheConfig sets the context's preference, for kernels without one
// (cuCtxSetCacheConfig). Devices with a fixed division ignore it.
func (c *Context) SetCacheConfig(p CacheConfig) error {
	return c.run("cuCtxSetCacheConfig", func(call sys.Caller) sys.CUresult {
		return call.CuCtxSetCacheConfig(sys.CUfunc_cache(p))
	})
}

// ResetPersistingL2 makes all lines that persist in the L2 cache ordinary again
// (cuCtxResetPersistingL2Cache). [ErrNotSupported]: the device has no such
// lines.
func (c *Context) ResetPersistingL2() error {
	return c.run("cuCtxResetPersistingL2Cache", sys.Caller.CuCtxResetPersistingL2Cache)
}
