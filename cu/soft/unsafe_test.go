package soft

import (
	"os"
	"testing"
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// at returns the address of a slice's bytes for a call.
func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// export returns a new fd of the memory.
func export(t testing.TB, h sys.CUmemGenericAllocationHandle) *os.File {
	t.Helper()
	fd := new(int32)
	ok(t, caller.CuMemExportToShareableHandle(unsafe.Pointer(fd), h, sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
	return os.NewFile(uintptr(*fd), "memory")
}

// exportResult returns the result of an export that is to fail.
func exportResult(h sys.CUmemGenericAllocationHandle, typ sys.CUmemAllocationHandleType) sys.CUresult {
	fd := new(int32)
	return caller.CuMemExportToShareableHandle(unsafe.Pointer(fd), h, typ, 0)
}

// hostMemory returns pinned memory, freed when the test ends.
func hostMemory(t testing.TB, c sys.Caller, n uintptr) []byte {
	t.Helper()
	p := new(unsafe.Pointer)
	ok(t, c.CuMemHostAlloc(p, n, 0))
	t.Cleanup(func() { ok(t, c.CuMemFreeHost(*p)) })
	return unsafe.Slice((*byte)(*p), n)
}

// wild is a host address where nothing is.
func wild() unsafe.Pointer { return pointer(1 << 40) }

// hostMemoryOf is hostMemory that the context is left to free.
func hostMemoryOf(t testing.TB, c sys.Caller, n uintptr) {
	t.Helper()
	ok(t, c.CuMemHostAlloc(new(unsafe.Pointer), n, 0))
}

// addr returns the address of a slice's bytes as a unified one. The slice must
// be on the heap and outlive the call.
func addr(b []byte) sys.CUdeviceptr { return sys.CUdeviceptr(uintptr(at(b))) }

// freeWhileCopying copies from pinned memory, all 77, that is freed meanwhile.
func freeWhileCopying(t testing.TB, c sys.Caller, q sys.CUdeviceptr, s sys.CUstream) {
	t.Helper()
	p := new(unsafe.Pointer)
	ok(t, c.CuMemHostAlloc(p, 10, 0))
	for i := range unsafe.Slice((*byte)(*p), 10) {
		*(*byte)(unsafe.Add(*p, i)) = 77
	}
	ok(t, c.CuMemcpyHtoDAsync_v2(q, *p, 10, s))
	ok(t, c.CuMemFreeHost(*p))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemFreeHost(*p))
}

// looseHostMemory is a pinned word of four bytes that the caller frees.
func looseHostMemory(t testing.TB, c sys.Caller) (word []byte, free func()) {
	t.Helper()
	p := new(unsafe.Pointer)
	ok(t, c.CuMemHostAlloc(p, 4096, 0))
	return unsafe.Slice((*byte)(*p), 4), func() { ok(t, c.CuMemFreeHost(*p)) }
}
