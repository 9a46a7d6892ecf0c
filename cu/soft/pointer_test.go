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
		width := driver.widthOf(a)
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

// The address to a kernel is the current context's; without one there is none,
// and no rights but to memory that belongs to a context.
func TestAttributesWithoutContext(t *testing.T) {
	c := inContext(t, 0)
	onThread(t)
	q := linear(t, c, 100)
	p, _ := buffer(t, 2*MiB, 0)
	ids := []sys.CUpointer_attribute{sys.CU_POINTER_ATTRIBUTE_DEVICE_POINTER, sys.CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, sys.CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE}
	ok(t, caller.CuCtxSetCurrent(0))
	_, r := attributeOf(caller, ids[0], q)
	want(t, sys.CUDA_ERROR_INVALID_CONTEXT, r)
	for _, x := range []struct {
		c      sys.Caller
		p      sys.CUdeviceptr
		ptr    sys.CUdeviceptr
		rights uint32
	}{{caller, q, 0, 3}, {caller, p, 0, 0}, {c, q, q, 3}, {c, p, p, 3}, {inContext(t, 1), p, 0, 0}} {
		ok(t, caller.CuCtxSetCurrent(0))
		w, r := attributesOf(x.c, x.p, ids...)
		ok(t, r)
		require.EqualValues(t, x.ptr, w[0])
		require.Equal(t, x.rights, uint32(w[1]))
		require.Zero(t, uint32(w[2]))
	}
}

// Several attributes are all known or none is told.
func TestUnknownAttributes(t *testing.T) {
	c := inContext(t, 0)
	q := linear(t, c, 100)
	kind := sys.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
	invalid := sys.CUDA_ERROR_INVALID_VALUE
	w, r := attributesOf(c, q, kind, 99)
	want(t, invalid, r)
	require.Equal(t, ^uint64(0), w[0])
	_, r = attributesOf(c, q)
	want(t, invalid, r)
	_, r = attributesOf(c, q, kind, 0)
	want(t, invalid, r)
	w, r = attributesOf(c, q+100, kind, sys.CU_POINTER_ATTRIBUTE_RANGE_SIZE, sys.CU_POINTER_ATTRIBUTE_HOST_POINTER)
	ok(t, r) // what follows memory is nobody's
	require.Equal(t, []uint64{^uint64(0) &^ 0xffffffff, ^uint64(0), uint64(q + 100)}, w)
	_, r = attributeOf(c, kind, q+100)
	want(t, invalid, r)
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

// Memory of a pool says which, until it is freed.
func TestAttributesOfPooledMemory(t *testing.T) {
	c := inContext(t, 0)
	s, p, pool := newStream(t, c, 0), new(sys.CUdeviceptr), new(sys.CUmemoryPool)
	ok(t, c.CuDeviceGetDefaultMemPool(pool, 0))
	ok(t, c.CuMemAllocAsync(p, 1000, s))
	ask := func() []uint64 {
		w, r := attributesOf(c, *p, sys.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, sys.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
			sys.CU_POINTER_ATTRIBUTE_CONTEXT, sys.CU_POINTER_ATTRIBUTE_BUFFER_ID)
		ok(t, r)
		return w
	}
	w := ask()
	require.Equal(t, []uint64{uint64(*pool), 1000, 0}, w[:3])
	require.NotZero(t, w[3])
	ok(t, c.CuMemFreeAsync(*p, s))
	require.Equal(t, []uint64{0, ^uint64(0), 0, 0}, ask())
	ok(t, c.CuStreamSynchronize(s))
}

func TestUnregister(t *testing.T) {
	c := inContext(t, 0)
	b, pinned := make([]byte, 100), hostMemory(t, c, 100)
	none, invalid := sys.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, sys.CUDA_ERROR_INVALID_VALUE
	want(t, none, c.CuMemHostUnregister(at(b)))
	ok(t, c.CuMemHostRegister_v2(at(b), 100, 0))
	want(t, invalid, c.CuMemHostUnregister(at(b[1:])))
	want(t, invalid, c.CuMemFreeHost(at(b)))
	ok(t, c.CuMemHostUnregister(at(b)))
	want(t, none, c.CuMemHostUnregister(at(b)))
	want(t, invalid, c.CuMemHostUnregister(at(pinned)))
	want(t, invalid, c.CuMemHostUnregister(nil))
	ok(t, c.CuMemHostRegister(at(b), 100, 0)) // the older ABI
	c1 := inContext(t, 1)
	ok(t, c1.CuMemHostUnregister(at(b)))
}
