package soft

import (
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
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

// Registered memory must be there, all of it.
func TestRegisteredMemoryIsThere(t *testing.T) {
	c := inContext(t, 0)
	page := unix.Getpagesize()
	b, err := unix.Mmap(-1, 0, 4*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	require.NoError(t, unix.Mprotect(b[2*page:3*page], unix.PROT_READ))
	size := func(n int) uintptr { return uintptr(n) }
	register := func(from, to int, flags uint32) sys.CUresult {
		r := c.CuMemHostRegister_v2(at(b[from:]), size(to-from), flags)
		if r == sys.CUDA_SUCCESS {
			ok(t, c.CuMemHostUnregister(at(b[from:])))
		}
		return r
	}
	invalid := sys.CUDA_ERROR_INVALID_VALUE
	ok(t, register(0, 2*page, 0))
	ok(t, register(page-1, page+1, 0))
	want(t, invalid, register(0, 2*page+1, 0))
	want(t, invalid, register(2*page, 2*page+1, 0))
	ok(t, register(0, 4*page, sys.CU_MEMHOSTREGISTER_READ_ONLY))
	require.NoError(t, unix.Mprotect(b[2*page:3*page], unix.PROT_NONE))
	want(t, invalid, register(0, 4*page, sys.CU_MEMHOSTREGISTER_READ_ONLY))
	ok(t, register(3*page, 4*page, 0))
	want(t, invalid, c.CuMemHostRegister_v2(wild(), 4096, 0))
	want(t, invalid, c.CuMemHostRegister_v2(pointer(uintptr(linear(t, c, 4096))), 4096, 0))
	want(t, sys.CUDA_ERROR_OUT_OF_MEMORY, c.CuMemHostRegister_v2(at(b), 1<<45, 0))
	want(t, invalid, c.CuMemHostRegister_v2(at(b), ^uintptr(0), 0))
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
