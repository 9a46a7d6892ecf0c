package conformance

import (
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// at returns the address of a slice's bytes for a call.
func at(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// hostPointer returns a made-up host address for a call.
func hostPointer(addr uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&addr))
}

// addressOf is the number of a pointer's address.
func addressOf(p unsafe.Pointer) uintptr { return uintptr(p) }

// export asks for a descriptor of the memory.
func export(c sys.Caller, h sys.CUmemGenericAllocationHandle, kind sys.CUmemAllocationHandleType, flags uint64) (int, sys.CUresult) {
	fd := new(int32)
	r := c.CuMemExportToShareableHandle(unsafe.Pointer(fd), h, kind, flags)
	return int(*fd), r
}

// exportFabric asks for a fabric handle of the memory.
func exportFabric(c sys.Caller, h sys.CUmemGenericAllocationHandle, kind sys.CUmemAllocationHandleType) sys.CUresult {
	return c.CuMemExportToShareableHandle(unsafe.Pointer(new([64]byte)), h, kind, 0)
}

// pinned returns pinned host memory.
func pinned(c sys.Caller, size uintptr, flags uint32) (unsafe.Pointer, sys.CUresult) {
	p := new(unsafe.Pointer)
	r := c.CuMemHostAlloc(p, size, flags)
	return *p, r
}
