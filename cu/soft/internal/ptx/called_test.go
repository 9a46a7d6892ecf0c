package ptx

import (
	"encoding/binary"
	"math/bits"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Threads are together in a function only if the same calls led them there.
func TestCalledByDifferentCalls(t *testing.T) {
	text, err := os.ReadFile("testdata/corpus/called.ptx")
	require.NoError(t, err)
	sameParity := func(lane, other int) bool { return lane&1 == other&1 }
	for kernel, together := range map[string]func(lane, other int) bool{
		"direct":    sameParity,
		"nested":    sameParity,
		"together":  func(int, int) bool { return true },
		"loops":     func(lane, other int) bool { return sameParity(lane, other) && lane&6 <= other&6 },
		"pointers":  sameParity,
		"recursion": func(lane, other int) bool { return lane&7 == other&7 },
	} {
		t.Run(kernel, func(t *testing.T) {
			for _, arch := range []string{"sm_75", "sm_52"} { // the threads of the latter go in step
				m := parsed(t, strings.Replace(string(text), "sm_75", arch, 1))
				for thread, got := range answers(t, m, kernel) {
					var here uint32
					for other := range warpSize {
						here |= uint32(boolBits(together(thread%warpSize, other))) << other
					}
					first := thread/warpSize*warpSize + bits.TrailingZeros32(here)
					agree := here & [2]uint32{0x0f0f0f0f, 0xf0f0f0f0}[thread>>2&1]
					require.Equal(t, [4]uint32{here, here, uint32(first), agree}, got, "%s: thread %d", arch, thread)
				}
			}
		})
	}
}

// answers runs a kernel of called.ptx and returns what its threads left.
func answers(t *testing.T, m *Module, kernel string) [][4]uint32 {
	t.Helper()
	list := make([][4]uint32, 2*warpSize)
	memory := make([]byte, binary.Size(list))
	launch(t, m, kernel, memory, 1, uint32(len(list)), params(uint64(base)))
	_, err := binary.Decode(memory, binary.LittleEndian, list)
	require.NoError(t, err)
	return list
}
