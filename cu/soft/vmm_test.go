package soft

import (
	"os"
	"syscall"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

const posixFD = sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

// Only whole allocations can be mapped.
func TestMapWhole(t *testing.T) { // D1
	initialised(t)
	h := create(t, 4*MiB, 0)
	p := reserved(t, 8*MiB)
	for _, x := range []struct{ size, offset uintptr }{
		{2 * MiB, 0}, {8 * MiB, 0}, {4*MiB - 1, 0}, {2 * MiB, 2 * MiB}, {4 * MiB, 2 * MiB}, {4 * MiB, 1},
	} {
		want(t, sys.CUDA_ERROR_NOT_SUPPORTED, caller.CuMemMap(p, x.size, x.offset, h, 0))
	}
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemMap(p, 4*MiB, 0, h, 1))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemMap(p, 0, 0, h, 0))
	mapped(t, p, 4*MiB, h)
}

// The same memory at two addresses, each with its own rights.
func TestAliases(t *testing.T) { // D2, D5
	c := inContext(t, 0)
	p, h := buffer(t, 2*MiB, 0)
	q := reserved(t, 2*MiB)
	mapped(t, q, 2*MiB, h)
	ok(t, caller.CuMemSetAccess(q, 2*MiB, accessTo(0, readOnly), 1))
	data, got := pattern(1000, 3), make([]byte, 1000)
	ok(t, c.CuMemcpyHtoD_v2(p+100, at(data), 1000))
	ok(t, c.CuMemcpyDtoH_v2(at(got), q+100, 1000))
	require.Equal(t, data, got)
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemcpyHtoD_v2(q, at(data), 1000))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemsetD8_v2(q, 0, 1000))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemcpyDtoD_v2(q, p, 1000))
	ok(t, c.CuCtxSynchronize()) // none of that is sticky
	flags := new(uint64)
	ok(t, c.CuMemGetAccess(flags, &accessTo(0, 0).Location, q+5))
	require.EqualValues(t, readOnly, *flags)
	ok(t, c.CuMemGetAccess(flags, &accessTo(1, 0).Location, q))
	require.Zero(t, *flags)
}

func TestMapWhere(t *testing.T) { // D3
	initialised(t)
	h, h2 := create(t, 4*MiB, 0), create(t, 2*MiB, 0)
	p := reserved(t, 8*MiB)
	mapped(t, p+2*MiB, 4*MiB, h)
	invalid := sys.CUDA_ERROR_INVALID_VALUE
	want(t, invalid, caller.CuMemMap(p+2*MiB, 4*MiB, 0, h, 0))
	want(t, invalid, caller.CuMemMap(p+4*MiB, 2*MiB, 0, h2, 0))
	want(t, invalid, caller.CuMemMap(p, 4*MiB, 0, h, 0))       // overlaps its head
	want(t, invalid, caller.CuMemMap(p+6*MiB, 4*MiB, 0, h, 0)) // runs out of the reservation
	want(t, invalid, caller.CuMemMap(p+MiB, 2*MiB, 0, h2, 0))  // not aligned
	want(t, invalid, caller.CuMemMap(0, 2*MiB, 0, h2, 0))
	want(t, invalid, caller.CuMemMap(1<<46, 2*MiB, 0, h2, 0))
	want(t, invalid, caller.CuMemAddressFree(p, 8*MiB)) // mapped
	want(t, invalid, caller.CuMemUnmap(p+2*MiB, 2*MiB))
	want(t, invalid, caller.CuMemUnmap(p+4*MiB, 2*MiB))
	want(t, invalid, caller.CuMemUnmap(p, 4*MiB))
	mapped(t, p, 2*MiB, h2)
	mapped(t, p+6*MiB, 2*MiB, h2)
	q := reserved(t, 4*MiB)
	want(t, invalid, caller.CuMemAddressFree(q, 2*MiB))
	want(t, invalid, caller.CuMemAddressFree(q+2*MiB, 2*MiB))
	want(t, invalid, caller.CuMemAddressFree(0, 2*MiB))
}

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

func TestAccessBeforeSet(t *testing.T) { // D5
	c := inContext(t, 0)
	h := create(t, 2*MiB, 0)
	p := reserved(t, 2*MiB)
	b := make([]byte, 10)
	invalid := sys.CUDA_ERROR_INVALID_VALUE
	want(t, invalid, c.CuMemcpyDtoH_v2(at(b), p, 10)) // nothing mapped
	mapped(t, p, 2*MiB, h)
	want(t, invalid, c.CuMemcpyDtoH_v2(at(b), p, 10))
	want(t, invalid, c.CuMemcpyHtoD_v2(p, at(b), 10))
	ok(t, caller.CuMemSetAccess(p, 2*MiB, accessTo(0, readWrite), 1))
	ok(t, c.CuMemcpyHtoD_v2(p, at(b), 10))
	ok(t, caller.CuMemSetAccess(p, 2*MiB, accessTo(0, sys.CU_MEM_ACCESS_FLAGS_PROT_NONE), 1))
	want(t, invalid, c.CuMemcpyDtoH_v2(at(b), p, 10))
}

// Rights are each device's own.
func TestAccessPerDevice(t *testing.T) {
	c0, c1 := inContext(t, 0), inContext(t, 1)
	p, _ := buffer(t, 2*MiB, 0)
	b := []byte{1, 2, 3}
	ok(t, c0.CuMemcpyHtoD_v2(p, at(b), 3))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c1.CuMemcpyDtoH_v2(at(b), p, 3))
	both := []sys.CUmemAccessDesc{*accessTo(0, readWrite), *accessTo(1, readOnly)} // D21
	ok(t, caller.CuMemSetAccess(p, 2*MiB, &both[0], 2))
	got := make([]byte, 3)
	ok(t, c1.CuMemcpyDtoH_v2(at(got), p, 3))
	require.Equal(t, b, got)
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c1.CuMemcpyHtoD_v2(p, at(b), 3))
}

func TestSetAccess(t *testing.T) {
	c := inContext(t, 0)
	p := reserved(t, 8*MiB)
	mapped(t, p, 2*MiB, create(t, 2*MiB, 0))
	mapped(t, p+2*MiB, 4*MiB, create(t, 4*MiB, 0))
	invalid := sys.CUDA_ERROR_INVALID_VALUE
	rw := accessTo(0, readWrite)
	want(t, invalid, caller.CuMemSetAccess(p, 8*MiB, rw, 1)) // a hole at the end
	want(t, invalid, caller.CuMemSetAccess(p, 4*MiB, rw, 1)) // part of a mapping
	want(t, invalid, caller.CuMemSetAccess(p+MiB, MiB, rw, 1))
	want(t, invalid, caller.CuMemSetAccess(p+6*MiB, 2*MiB, rw, 1))
	want(t, invalid, caller.CuMemSetAccess(p, 0, rw, 1))
	want(t, invalid, caller.CuMemSetAccess(p, 2*MiB, nil, 1))
	want(t, invalid, caller.CuMemSetAccess(p, 2*MiB, rw, 0))
	want(t, invalid, caller.CuMemSetAccess(p, 2*MiB, accessTo(0, 2), 1))
	want(t, invalid, caller.CuMemSetAccess(p, 2*MiB, accessTo(2, readWrite), 1))
	host := &sys.CUmemAccessDesc{Location: sys.CUmemLocation{Type: sys.CU_MEM_LOCATION_TYPE_HOST}, Flags: readWrite}
	want(t, sys.CUDA_ERROR_NOT_SUPPORTED, caller.CuMemSetAccess(p, 2*MiB, host, 1))
	mixed := []sys.CUmemAccessDesc{*rw, *accessTo(7, readWrite)}
	want(t, invalid, caller.CuMemSetAccess(p, 6*MiB, &mixed[0], 2))
	want(t, invalid, c.CuMemsetD8_v2(p, 1, 1)) // a failed call gave no rights
	ok(t, caller.CuMemSetAccess(p, 6*MiB, rw, 1))
	ok(t, c.CuMemsetD8_v2(p+6*MiB-1, 1, 1))
	want(t, invalid, caller.CuMemGetAccess(new(uint64), &rw.Location, p+7*MiB))
}

// Over a hole access is set as far as that, and nothing is said.
func TestSetAccessOverAHole(t *testing.T) {
	c := inContext(t, 0)
	p := reserved(t, 6*MiB)
	mapped(t, p, 2*MiB, create(t, 2*MiB, 0))
	mapped(t, p+4*MiB, 2*MiB, create(t, 2*MiB, 0))
	ok(t, caller.CuMemSetAccess(p, 6*MiB, accessTo(0, readWrite), 1))
	misused(t, 1)
	ok(t, c.CuMemsetD8_v2(p, 1, 1))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemsetD8_v2(p+4*MiB, 1, 1))
}

// Imported memory cannot be exported, and its properties say so.
func TestImportedProperties(t *testing.T) { // D6
	initialised(t)
	f := exported(t, create(t, 2*MiB, 1))
	h := imported(t, f)
	prop := new(sys.CUmemAllocationProp)
	ok(t, caller.CuMemGetAllocationPropertiesFromHandle(prop, h))
	wanted := propOf(1)
	wanted.RequestedHandleTypes = sys.CU_MEM_HANDLE_TYPE_NONE
	require.Equal(t, wanted, prop)
	want(t, sys.CUDA_ERROR_INVALID_VALUE, exportResult(h, posixFD))
}

// imported imports a file until the test ends.
func imported(t testing.TB, f *os.File) sys.CUmemGenericAllocationHandle {
	t.Helper()
	var h sys.CUmemGenericAllocationHandle
	ok(t, caller.CuMemImportFromShareableHandle(&h, f.Fd(), posixFD))
	t.Cleanup(func() { ok(t, caller.CuMemRelease(h)) })
	return h
}

// VMM calls need no context.
func TestNoContextNeeded(t *testing.T) { // D7
	initialised(t)
	onThread(t)
	_, h := buffer(t, 2*MiB, 0)
	imported(t, exported(t, h))
}

func TestExport(t *testing.T) {
	initialised(t)
	h := create(t, 2*MiB, 0)
	a, b := exported(t, h), exported(t, h)
	require.NotEqual(t, a.Fd(), b.Fd())
	flags, _, errno := syscall.Syscall(syscall.SYS_FCNTL, a.Fd(), syscall.F_GETFD, 0)
	require.Zero(t, errno)
	require.EqualValues(t, syscall.FD_CLOEXEC, flags) // fault 16
	invalid := sys.CUDA_ERROR_INVALID_VALUE
	want(t, invalid, exportResult(h, sys.CU_MEM_HANDLE_TYPE_FABRIC))
	want(t, invalid, caller.CuMemExportToShareableHandle(nil, h, posixFD, 0))
	private := propOf(0)
	private.RequestedHandleTypes = sys.CU_MEM_HANDLE_TYPE_NONE
	var h2 sys.CUmemGenericAllocationHandle
	ok(t, caller.CuMemCreate(&h2, 2*MiB, private, 0))
	want(t, invalid, exportResult(h2, posixFD))
	ok(t, caller.CuMemRelease(h2))
}

// Fresh memory reads as zero.
func TestFresh(t *testing.T) { // D9
	c := inContext(t, 0)
	for range 2 {
		p, free := looseBuffer(t, 2*MiB)
		b := pattern(2*MiB, 1)
		ok(t, c.CuMemcpyDtoH_v2(at(b), p, 2*MiB))
		require.Equal(t, make([]byte, 2*MiB), b)
		ok(t, c.CuMemsetD8_v2(p, 0xff, 2*MiB))
		ok(t, c.CuCtxSynchronize())
		free()
	}
}

// A mapping keeps memory whose handle was released; only both gone frees it.
func TestLifetime(t *testing.T) { // D12, D13
	c := inContext(t, 0)
	before := freeMemory(t, c)
	var h sys.CUmemGenericAllocationHandle
	ok(t, caller.CuMemCreate(&h, 2*MiB, propOf(0), 0))
	require.Equal(t, before-2*MiB, freeMemory(t, c))
	p := reserved(t, 2*MiB)
	ok(t, caller.CuMemMap(p, 2*MiB, 0, h, 0))
	ok(t, caller.CuMemSetAccess(p, 2*MiB, accessTo(0, readWrite), 1))
	ok(t, caller.CuMemRelease(h))
	require.Equal(t, before-2*MiB, freeMemory(t, c))
	ok(t, c.CuMemsetD8_v2(p, 1, 2*MiB))
	ok(t, c.CuCtxSynchronize())

	var again sys.CUmemGenericAllocationHandle
	ok(t, caller.CuMemRetainAllocationHandle(&again, uintptr(p)+1))
	require.Equal(t, h, again, "the handle is back")
	ok(t, caller.CuMemUnmap(p, 2*MiB))
	require.Equal(t, before-2*MiB, freeMemory(t, c))
	ok(t, caller.CuMemRelease(again))
	require.Equal(t, before, freeMemory(t, c))
}

func TestRetain(t *testing.T) {
	initialised(t)
	p, h := buffer(t, 2*MiB, 0)
	var again sys.CUmemGenericAllocationHandle
	ok(t, caller.CuMemRetainAllocationHandle(&again, uintptr(p)))
	require.Equal(t, h, again)
	ok(t, caller.CuMemRelease(again))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, caller.CuMemRetainAllocationHandle(&again, 4096))
	ok(t, caller.CuMemGetAllocationPropertiesFromHandle(new(sys.CUmemAllocationProp), h))
}

// freeMemory returns what cuMemGetInfo says is free.
func freeMemory(t testing.TB, c sys.Caller) uintptr {
	t.Helper()
	free, total := new(uintptr), new(uintptr)
	ok(t, c.CuMemGetInfo_v2(free, total))
	require.EqualValues(t, testMemory, *total)
	return *free
}
