package cu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// A limit is set for one context, to what was asked for or to the nearest that
// the device can do.
func TestLimits(t *testing.T) {
	dev := cutest.Device(t)
	ctx, other := newContext(t, dev, cu.SchedAuto), cutest.Context(t, dev)
	before := ok(other.Limit(cu.LimitStackSize))(t)
	for _, c := range []struct {
		limit       cu.Limit
		value, want uint64
	}{
		{cu.LimitStackSize, 1000, 1008},
		{cu.LimitPrintfFIFOSize, 16 << 20, 16 << 20},
	} {
		require.NoError(t, ctx.SetLimit(c.limit, c.value), c.limit.String())
		require.Equal(t, c.want, ok(ctx.Limit(c.limit))(t), c.limit.String())
	}
	require.Equal(t, before, ok(other.Limit(cu.LimitStackSize))(t))
	shared := ok(ctx.Limit(cu.LimitShmemSize))(t)
	require.EqualValues(t, ok(dev.Attribute(cu.AttributeMaxSharedMemoryPerBlockOptin))(t), shared)
}

func TestCacheConfig(t *testing.T) {
	ctx := newContext(t, cutest.Device(t), cu.SchedAuto)
	require.Equal(t, cu.CachePreferNone, ok(ctx.CacheConfig())(t))
	for _, p := range []cu.CacheConfig{cu.CachePreferShared, cu.CachePreferL1, cu.CachePreferEqual} {
		require.NoError(t, ctx.SetCacheConfig(p))
		require.Equal(t, p, ok(ctx.CacheConfig())(t))
	}
	require.ErrorIs(t, ctx.SetCacheConfig(7), cu.ErrInvalidValue)
	require.Equal(t, "CU_FUNC_CACHE_PREFER_L1", cu.CachePreferL1.String())
	require.NoError(t, ctx.ResetPersistingL2())
}
