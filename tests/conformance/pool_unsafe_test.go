package conformance

import (
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// poolValue returns an attribute of a pool. Where that is an int it fills the
// lower half.
func poolValue(c sys.Caller, p sys.CUmemoryPool, a sys.CUmemPool_attribute) (uint64, sys.CUresult) {
	v := new(uint64)
	r := c.CuMemPoolGetAttribute(p, a, unsafe.Pointer(v))
	return *v, r
}

// setPoolValue sets an attribute of a pool.
func setPoolValue(c sys.Caller, p sys.CUmemoryPool, a sys.CUmemPool_attribute, value uint64) sys.CUresult {
	v := new(uint64)
	*v = value
	return c.CuMemPoolSetAttribute(p, a, unsafe.Pointer(v))
}

// exportPool asks for a descriptor of a pool.
func exportPool(c sys.Caller, p sys.CUmemoryPool, kind sys.CUmemAllocationHandleType, flags uint64) (int, sys.CUresult) {
	fd := new(int32)
	r := c.CuMemPoolExportToShareableHandle(unsafe.Pointer(fd), p, kind, flags)
	return int(*fd), r
}
