package corpus

import (
	"context"
	"errors"
	"math/bits"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// Threads are together in a function only if the same calls led them there. A GPU may have
// fewer threads together than the software driver, so that each thread's answers are
// compared with those that follow from the mask which it was given. The code is not
// optimised, because an optimiser may replace calls by what they call.
func TestCalledByDifferentCalls(t *testing.T) {
	text := ok(os.ReadFile("../../cu/soft/internal/ptx/testdata/corpus/called.ptx"))(t)
	c := cutest.Context(t, cutest.Device(t))
	require.NoError(t, c.SetLimit(cu.LimitStackSize, randomStack))
	sameParity := func(lane int) uint32 { return 0x55555555 << (lane & 1) }
	kernels := []struct {
		name       string
		mayBeThere func(lane int) uint32
	}{
		{"direct", sameParity},
		{"nested", sameParity},
		{"loops", sameParity},
		{"pointers", sameParity},
		{"recursion", func(lane int) uint32 { return 0x01010101 << (lane & 7) }},
		{"together", func(int) uint32 { return 0xffffffff }},
	}
	for name, option := range map[string]cu.JITOption{"not optimised": cu.JITOptimization(asWritten), "for a debugger": cu.JITDebugInfo()} {
		m := ok(c.LoadModule(text, option))(t)
		defer func() { require.NoError(t, m.Close()) }()
		for _, k := range kernels {
			t.Run(k.name+" "+name, func(t *testing.T) {
				for thread, got := range answers(t, m, k.name) {
					lane, here := thread%32, got[0]
					require.NotZero(t, here>>lane&1, "thread %d is not in its own mask, %#x", thread, here)
					require.Zero(t, here&^k.mayBeThere(lane), "thread %d is with others: %#x", thread, here)
					first := thread - lane + bits.TrailingZeros32(here)
					agree := here & [2]uint32{0x0f0f0f0f, 0xf0f0f0f0}[thread>>2&1]
					require.Equal(t, [4]uint32{here, here, uint32(first), agree}, got, "thread %d", thread)
				}
			})
		}
	}
}

// answers runs a kernel of called.ptx and returns what its threads left.
func answers(t *testing.T, m *cu.Module, kernel string) [][4]uint32 {
	t.Helper()
	c, list := m.Context(), make([][4]uint32, 64)
	f := ok(m.Function(kernel))(t)
	s := ok(c.NewStream())(t)
	defer s.Close()
	out := ok(c.Alloc(uint64(len(list)) * 16))(t)
	defer out.Close()
	require.NoError(t, f.Launch(s, cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: uint32(len(list))}}, out))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, s.Synchronize(ctx))
	require.NoError(t, errors.Join(cu.CopyToHostAsync(s, list, out.Ptr()), s.Synchronize(t.Context())))
	return list
}
