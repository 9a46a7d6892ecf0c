package sys

import "unsafe"

// numRegs is how many integer arguments registers carry.
const numRegs = 6

// placeValue lays out a struct of size bytes by value, of integers or
// pointers: up to 16 bytes go where as many words would, if registers can hold
// it whole; a larger one is copied to the stack and the arguments around it
// move up (System V AMD64 ABI, 3.2.3).
func (fr *frame) placeValue(p unsafe.Pointer, size uintptr) {
	w := words(p, size)
	fr.note(uintptr(size))
	if size <= 16 && int(fr.nreg)+len(w) <= numRegs {
		fr.nreg += uint8(copy(fr.word[fr.nreg:], w))
		return
	}
	for _, x := range w {
		fr.push(x)
	}
}
