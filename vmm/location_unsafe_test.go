package vmm_test

import (
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// storeLocation changes the properties that a call stores at addr.
func storeLocation(addr uintptr, t sys.CUmemLocationType) {
	(*(**sys.CUmemAllocationProp)(unsafe.Pointer(&addr))).Location.Type = t
}
