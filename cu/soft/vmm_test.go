package soft

import (
	"os"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

const posixFD = sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

// A call that the real driver crashes on or accepts is an error, and a misuse.
func TestMisuses(t *testing.T) { // D4
	initialised(t)
	invalid := sys.CUDA_ERROR_INVALID_VALUE
	want(t, invalid, caller.CuMemRelease(0)) // which the real driver knows
	for _, h := range []sys.CUmemGenericAllocationHandle{1, 0xdeadbeef, 1 << 63} {
		want(t, invalid, caller.CuMemRelease(h))
		misused(t, 1)
	}
	var h sys.CUmemGenericAllocationHandle
	ok(t, caller.CuMemCreate(&h, 2*MiB, propOf(0), 0))
	p := reserved(t, 4*MiB)
	ok(t, caller.CuMemMap(p, 2*MiB, 0, h, 0))
	ok(t, caller.CuMemRelease(h))
	want(t, invalid, caller.CuMemRelease(h)) // twice, and still mapped
	misused(t, 1)
	want(t, invalid, caller.CuMemUnmap(p, 4*MiB)) // more than was mapped
	misused(t, 1)
	ok(t, caller.CuMemUnmap(p, 2*MiB))
	want(t, invalid, caller.CuMemUnmap(p, 2*MiB)) // again
	misused(t, 1)
	want(t, invalid, caller.CuMemMap(p, 2*MiB, 0, h, 0))
	want(t, invalid, exportResult(h, posixFD))
	misused(t, 2)
}

// imported imports a file until the test ends.
func imported(t testing.TB, f *os.File) sys.CUmemGenericAllocationHandle {
	t.Helper()
	var h sys.CUmemGenericAllocationHandle
	ok(t, caller.CuMemImportFromShareableHandle(&h, f.Fd(), posixFD))
	t.Cleanup(func() { ok(t, caller.CuMemRelease(h)) })
	return h
}

// freeMemory returns what cuMemGetInfo says is free.
func freeMemory(t testing.TB, c sys.Caller) uintptr {
	t.Helper()
	free, total := new(uintptr), new(uintptr)
	ok(t, c.CuMemGetInfo_v2(free, total))
	require.EqualValues(t, testMemory, *total)
	return *free
}
