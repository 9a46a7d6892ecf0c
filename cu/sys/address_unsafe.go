package sys

import (
	"runtime"
	"unsafe"
)

// Address pins the memory of s and returns its address, or 0 if s is empty. Use it where the driver takes
// an address of the host's memory as a number: in a struct, an array of values, or for later. A slice or
// a new alone does not do: Go may put it on the goroutine's stack, which moves. The memory stays where it
// is until p.Unpin; call that when the driver does not use the address any more. A pointer that is an
// argument of its own needs no pin.
func Address[T any](p *runtime.Pinner, s []T) uintptr {
	if len(s) == 0 {
		return 0
	}
	p.Pin(&s[0])
	return uintptr(unsafe.Pointer(&s[0]))
}
