package cu

import (
	"fmt"
	"math"
	"math/bits"
)

// A Pointer is memory that a copy, a fill or a kernel uses: a [DevicePtr], a [Slice], or whatever
// has an address, such as [*Memory], [*HostMemory], *vmm.Buffer and *share.Attachment. Ptr is 0
// once the memory is closed, and closed memory is refused ([ErrClosed]). If it has a method
// Size() uint64, in bytes, a copy or fill of more is refused ([ErrTooShort]), also if that is 0.
//
// A Pointer is only asked for its address. Its owner keeps the memory open until the work is done.
type Pointer interface{ Ptr() DevicePtr }

// sized is memory that knows how many bytes it has.
type sized interface{ Size() uint64 }

// untold is memory whose size the driver may not have told: an [*IPCMemory], and what embeds one.
type untold interface{ sizeUntold() bool }

// reach returns the address of p for a call that uses its first n bytes. It does not allocate for
// a DevicePtr and for what is a pointer.
func reach[P Pointer](op, what string, p P, n uint64) (DevicePtr, error) {
	if at, ok := any(p).(DevicePtr); ok {
		return at, nil
	}
	if any(p) == nil {
		return 0, unusable(op, what, true)
	}
	at := p.Ptr()
	if at == 0 {
		return 0, noAddress(op, what, p)
	}
	if size, known := sizeOf(p); known && size < n {
		return 0, tooShort(op, what, size, n)
	}
	return at, nil
}

// sizeOf returns how many bytes p has, and whether that is known.
func sizeOf[P Pointer](p P) (size uint64, known bool) {
	if _, ok := any(p).(sized); !ok { // asked first, because the next conversion allocates for a value
		return 0, false
	}
	if size = any(p).(sized).Size(); size != 0 {
		return size, true
	}
	m, ok := any(p).(untold)
	return 0, !ok || !m.sizeUntold()
}

// tooShort is the error of a copy or fill of n bytes of memory that has size bytes.
func tooShort(op, what string, size, n uint64) error {
	if n == math.MaxUint64 {
		return fmt.Errorf("%w: %s: %s has %d bytes; the call needs more than 64 bits can count", ErrTooShort, op, what, size)
	}
	return fmt.Errorf("%w: %s: %s has %d bytes; the call needs %d", ErrTooShort, op, what, size, n)
}

// rowsOf returns how many bytes height rows of width bytes span, at most the largest number.
func rowsOf(pitch, width, height uint64) uint64 {
	if width == 0 || height == 0 {
		return 0
	}
	end, carry := bits.Add64(bytesOf(height-1, pitch), width, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return end
}

// bytesOf returns the size of n elements of unit bytes, at most the largest number.
func bytesOf(n, unit uint64) uint64 {
	over, size := bits.Mul64(n, unit)
	if over != 0 {
		return math.MaxUint64
	}
	return size
}
