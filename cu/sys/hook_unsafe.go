package sys

import "unsafe"

// Out returns the 8-byte word that argument i points to: the handle or address
// that the driver has stored there, after next has returned CUDA_SUCCESS. It is 0
// for a null pointer. The argument must be a pointer to a handle or an address;
// nothing checks that.
func (c Call) Out(i int) uintptr {
	p := *(*unsafe.Pointer)(unsafe.Pointer(&c.args[i])) // kept alive by the method that makes the call
	if p == nil {
		return 0
	}
	return *(*uintptr)(p)
}
