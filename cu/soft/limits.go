package soft

import "github.com/gpufd/gpufd/cu/sys"

// The L2 cache's part for persisting accesses comes in tenths.
const (
	maxPersisting  = 640 << 10
	persistingUnit = maxPersisting / 10
)

// A limitRule says what values a limit takes: from least to most, in multiples of
// unit; values above clamp become clamp. A fixed limit takes none.
type limitRule struct {
	initial, least, clamp, most, unit uintptr
	fixed                             bool
}

// limitRules are the limits that the devices have, with the H200's rules.
// Nothing here runs short of any.
var limitRules = map[sys.CUlimit]limitRule{
	sys.CU_LIMIT_STACK_SIZE:                       {initial: 1 << 10, unit: 16, most: 256 << 10},
	sys.CU_LIMIT_PRINTF_FIFO_SIZE:                 {initial: 8448 << 10, least: 512 << 10, clamp: 2 << 30},
	sys.CU_LIMIT_MALLOC_HEAP_SIZE:                 {initial: 8 << 20, least: 4 << 20, clamp: 16 << 30},
	sys.CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: {initial: 2048, least: 32, clamp: 599186},
	sys.CU_LIMIT_MAX_L2_FETCH_GRANULARITY:         {initial: 64, most: 128},
	sys.CU_LIMIT_PERSISTING_L2_CACHE_SIZE:         {initial: 3 * persistingUnit, unit: persistingUnit, most: maxPersisting},
	sys.CU_LIMIT_SHMEM_SIZE:                       {initial: sharedOptIn, fixed: true},
	sys.CU_LIMIT_CIG_ENABLED:                      {fixed: true},
}

// defaultLimits are those of a new context.
func defaultLimits() map[sys.CUlimit]uintptr {
	limits := make(map[sys.CUlimit]uintptr)
	for l, rule := range limitRules {
		limits[l] = rule.initial
	}
	return limits
}

// fit returns what the limit becomes when value is asked for.
func (l limitRule) fit(value uintptr) (uintptr, sys.CUresult) {
	switch {
	case l.fixed:
		return 0, sys.CUDA_ERROR_NOT_PERMITTED
	case l.most != 0 && value > l.most:
		return 0, sys.CUDA_ERROR_INVALID_VALUE
	case l.clamp != 0:
		value = min(value, l.clamp)
	}
	value = max(value, l.least)
	if l.unit != 0 {
		value = (value + l.unit - 1) / l.unit * l.unit
	}
	return value, sys.CUDA_SUCCESS
}

// limitRule finds the rule of a limit.
func (m *machine) limitRule(l sys.CUlimit) (limitRule, sys.CUresult) {
	if l >= sys.CU_LIMIT_MAX {
		return limitRule{}, sys.CUDA_ERROR_INVALID_VALUE
	}
	rule, ok := limitRules[l]
	if !ok {
		return rule, sys.CUDA_ERROR_UNSUPPORTED_LIMIT
	}
	return rule, sys.CUDA_SUCCESS
}

func (m *machine) cuCtxGetLimit(out *uintptr, l sys.CUlimit) sys.CUresult {
	return withContext(m, m.current, func(ctx *context) sys.CUresult {
		if _, r := m.limitRule(l); r != sys.CUDA_SUCCESS {
			return r
		}
		return set(out, ctx.limits[l])
	})
}

func (m *machine) cuCtxSetLimit(l sys.CUlimit, value uintptr) sys.CUresult {
	return withContext(m, m.current, func(ctx *context) sys.CUresult {
		rule, r := m.limitRule(l)
		if r != sys.CUDA_SUCCESS {
			return r
		}
		if value, r = rule.fit(value); r == sys.CUDA_SUCCESS {
			ctx.limits[l] = value
		}
		return r
	})
}

func (m *machine) cuCtxGetCacheConfig(out *sys.CUfunc_cache) sys.CUresult {
	return withContext(m, m.current, func(ctx *context) sys.CUresult { return set(out, ctx.cache) })
}

func (m *machine) cuCtxSetCacheConfig(c sys.CUfunc_cache) sys.CUresult {
	return withContext(m, m.current, func(ctx *context) sys.CUresult {
		if c > sys.CU_FUNC_CACHE_PREFER_EQUAL {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		ctx.cache = c
		return sys.CUDA_SUCCESS
	})
}

// cuCtxGetSharedMemConfig returns what all devices have had since compute
// capability 5.0.
func (m *machine) cuCtxGetSharedMemConfig(out *sys.CUsharedconfig) sys.CUresult {
	return withContext(m, m.current, func(*context) sys.CUresult { return set(out, sys.CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE) })
}

// cuCtxSetSharedMemConfig changes nothing, as on such devices.
func (m *machine) cuCtxSetSharedMemConfig(c sys.CUsharedconfig) sys.CUresult {
	return withContext(m, m.current, func(*context) sys.CUresult { return valid(c <= sys.CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE) })
}

// cuCtxResetPersistingL2Cache has no cache to reset.
func (m *machine) cuCtxResetPersistingL2Cache() sys.CUresult {
	return withContext(m, m.current, func(*context) sys.CUresult { return sys.CUDA_SUCCESS })
}

// cuCtxGetExecAffinity reports all multiprocessors: nothing can take them away.
func (m *machine) cuCtxGetExecAffinity(out *sys.CUexecAffinityParam, t sys.CUexecAffinityType) sys.CUresult {
	return withContext(m, m.current, func(*context) sys.CUresult {
		if t != sys.CU_EXEC_AFFINITY_TYPE_SM_COUNT {
			return sys.CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY
		}
		v := sys.CUexecAffinityParam{Type: t}
		v.ParamSmCount().Val = uint32(multiprocessors())
		return set(out, v)
	})
}
