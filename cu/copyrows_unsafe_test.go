package cu_test

import (
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// boxAt reads what a call was given by address.
func boxAt(addr uintptr) sys.CUDA_MEMCPY3D_PEER {
	return **(**sys.CUDA_MEMCPY3D_PEER)(unsafe.Pointer(&addr))
}
