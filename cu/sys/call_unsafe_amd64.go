package sys

import "unsafe"

// numRegs is how many integer arguments registers carry.
const numRegs = 6

// placeValue lays out a struct of size bytes by value, of integers or
// pointers: up to 16 bytes go where as many words would, if registers can hold
// it whole; a larger one is copied to the stack and the arguments around it
// move up (System V AMD64 ABI, 3.2.3).
func (p *placed) placeValue(x unsafe.Pointer, size uintptr) {
	w := wholeWords(x, size)
	p.note(size)
	if size <= 16 && int(p.nreg)+len(w) <= numRegs {
		p.nreg += uint8(copy(p.word[p.nreg:], w))
		return
	}
	p.stack = append(p.stack, w...)
}
