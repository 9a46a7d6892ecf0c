package vmm_test

import (
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// moveToHost changes the properties that a call stored at addr.
func moveToHost(addr uintptr) {
	(*(**sys.CUmemAllocationProp)(unsafe.Pointer(&addr))).Location.Type = sys.CU_MEM_LOCATION_TYPE_HOST_NUMA
}
