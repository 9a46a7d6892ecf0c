package sys

import "unsafe"

// numRegs is how many integer arguments registers carry.
const numRegs = 8

// placeValue lays out a struct of size bytes by value, of integers or
// pointers: up to 16 bytes go where as many words would, if registers can hold
// it whole, and close the registers if not; a larger one is copied and its
// address takes its place (AAPCS64, 6.8.2).
func (p *placed) placeValue(x unsafe.Pointer, size uintptr) {
	w := wholeWords(x, size)
	switch n := p.nargs; {
	case size > 16:
		p.placePointer(unsafe.Pointer(unsafe.SliceData(w)))
		p.arg[n] = size
		return
	case int(p.nreg)+len(w) <= numRegs:
		p.nreg += uint8(copy(p.word[p.nreg:], w))
	default:
		p.nreg = numRegs
		p.stack = append(p.stack, w...)
	}
	p.note(size)
}
