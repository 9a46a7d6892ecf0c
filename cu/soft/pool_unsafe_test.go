package soft

import (
	"os"
	"testing"
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// poolValue returns an attribute of a pool.
func poolValue(t testing.TB, p sys.CUmemoryPool, a sys.CUmemPool_attribute) uint64 {
	t.Helper()
	v := new(uint64)
	ok(t, caller.CuMemPoolGetAttribute(p, a, unsafe.Pointer(v)))
	return *v
}

// setPoolValue sets an attribute of a pool.
func setPoolValue(p sys.CUmemoryPool, a sys.CUmemPool_attribute, value uint64) sys.CUresult {
	v := new(uint64)
	*v = value
	return caller.CuMemPoolSetAttribute(p, a, unsafe.Pointer(v))
}

// exportPool returns a new fd of a pool.
func exportPool(p sys.CUmemoryPool) (*os.File, sys.CUresult) {
	fd := new(int32)
	r := caller.CuMemPoolExportToShareableHandle(unsafe.Pointer(fd), p, sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
	return os.NewFile(uintptr(*fd), "pool"), r
}
