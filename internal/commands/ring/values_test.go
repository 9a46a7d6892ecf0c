package ring

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// With every salt, no two processes have the same value, and none has that of
// new memory; another salt gives other values.
func TestValues(t *testing.T) {
	for _, salt := range []uint32{0, 1, 7, 190, 254, 255, 256, 1 << 31, math.MaxUint32} {
		seen := map[byte]bool{}
		for _, v := range values(maxProcs, salt, false) {
			require.NotZero(t, v, salt)
			require.False(t, seen[v], "salt %d: %d twice", salt, v)
			seen[v] = true
		}
		require.NotEqual(t, values(maxProcs, salt, false), values(maxProcs, salt^1, false))
	}
	require.Equal(t, []byte{0, 1, 2, 3}, values(4, 9, true))
}

// In every step each chunk has one filler. After as many steps as processes, the
// values are where NVIDIA's sample expects them.
func TestChunksAndFillers(t *testing.T) {
	for procs := 1; procs <= maxProcs; procs++ {
		for step := range 3 * procs {
			for id := range procs {
				require.Equal(t, id, fillerOf(chunkOf(id, step, procs), step, procs))
			}
		}
		for id := range procs {
			require.Equal(t, (id+1)%procs, fillerOf(id, procs-1, procs))
		}
	}
	require.Equal(t, 5, fillerOf(chunkOf(5, math.MaxInt-7, 7), math.MaxInt-7, 7))
}
