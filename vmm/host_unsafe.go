package vmm

import (
	"unsafe"

	"github.com/gpufd/gpufd/cu"
)

// hostBytes returns n bytes at an address that the host may use. They are not on
// the Go heap.
func hostBytes(p cu.DevicePtr, n uint64) []byte {
	addr := uintptr(p)
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), n)
}
