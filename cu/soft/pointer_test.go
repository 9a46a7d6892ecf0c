package soft

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

// An attribute takes as many bytes as C says and no more.
func TestAttributesKeepTheirWidth(t *testing.T) {
	c := inContext(t, 0)
	q := linear(t, c, 100)
	for a := sys.CUpointer_attribute(0); a <= 23; a++ {
		w, r := attributeOf(c, a, q)
		width := driver.pointerAttribute(a).width
		switch {
		case a == sys.CU_POINTER_ATTRIBUTE_HOST_POINTER || width == 0:
			want(t, sys.CUDA_ERROR_INVALID_VALUE, r)
			require.Equal(t, ^uint64(0), w[0], a)
		case width == 4:
			ok(t, r)
			require.EqualValues(t, 0xffffffff, w[0]>>32, a)
		default:
			ok(t, r)
			require.NotEqual(t, ^uint64(0), w[0], a)
		}
		require.Equal(t, ^uint64(0), w[1], a)
	}
}

// A range is covered by maps with the rights that follow on each other.
func TestCovered(t *testing.T) {
	const maps = "1000-3000 rw-p 00000000 00:00 0\n3000-4000 r--p 00000000 fe:00 77   /bin/x\n" +
		"5000-6000 rw-p 00000000 00:00 0 [heap]\n6000-7000 ---p 00000000 00:00 0\nffff000-ffff1000 r-xp 0 0 0 [vdso]\n"
	for _, x := range []struct {
		addr, size uintptr
		write, ok  bool
	}{
		{0x1000, 0x2000, true, true}, {0x1fff, 2, true, true}, {0x2fff, 1, true, true}, {0x2fff, 2, true, false}, {0x2fff, 2, false, true},
		{0xfff, 2, false, false}, {0x3fff, 2, false, false}, {0x3000, 0x3000, false, false}, {0x4000, 1, false, false},
		{0x5000, 0x1000, true, true}, {0x5fff, 2, false, false}, {0x8000, 1, false, false}, {1 << 40, 1, false, false},
	} {
		require.Equal(t, x.ok, covered(maps, x.addr, x.size, x.write), "%#x", x)
	}
}
