package soft

import (
	"bytes"
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
	b := pinnedMemory(t, c, n)
	t.Cleanup(func() { ok(t, c.CuMemFreeHost(at(b))) })
	return b
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

// pinnedMemory is hostMemory that the caller frees.
func pinnedMemory(t testing.TB, c sys.Caller, n uintptr) []byte {
	t.Helper()
	p := new(unsafe.Pointer)
	ok(t, c.CuMemHostAlloc(p, n, 0))
	return unsafe.Slice((*byte)(*p), n)
}

// freeWhileCopying copies from pinned memory, all 77, that is freed meanwhile.
func freeWhileCopying(t testing.TB, c sys.Caller, q sys.CUdeviceptr, s sys.CUstream) {
	t.Helper()
	b := pinnedMemory(t, c, 10)
	copy(b, bytes.Repeat([]byte{77}, 10))
	ok(t, c.CuMemcpyHtoDAsync_v2(q, at(b), 10, s))
	ok(t, c.CuMemFreeHost(at(b)))
	want(t, sys.CUDA_ERROR_INVALID_VALUE, c.CuMemFreeHost(at(b)))
}

// setSync sets whether calls without a stream wait for what they do at p.
func setSync(t testing.TB, c sys.Caller, on *uint32, p sys.CUdeviceptr) {
	t.Helper()
	ok(t, c.CuPointerSetAttribute(unsafe.Pointer(on), sys.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p))
}

// attributeOf asks for one attribute into words of ones.
func attributeOf(c sys.Caller, a sys.CUpointer_attribute, p sys.CUdeviceptr) ([2]uint64, sys.CUresult) {
	w := &[2]uint64{^uint64(0), ^uint64(0)}
	r := c.CuPointerGetAttribute(unsafe.Pointer(w), a, p)
	return *w, r
}
