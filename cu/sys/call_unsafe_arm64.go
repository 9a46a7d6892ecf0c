package sys

import "unsafe"

// numRegs is how many integer arguments registers carry.
const numRegs = 8

// placeValue lays out a struct of size bytes by value, of integers or
// pointers: up to 16 bytes go where as many words would, if registers can hold
// it whole, and close the registers if not; a larger one is copied and its
// address takes its place (AAPCS64, 6.8.2).
func (fr *frame) placeValue(p unsafe.Pointer, size uintptr) {
	w := words(p, size)
	fr.note(uintptr(size))
	switch n := fr.nargs - 1; {
	case size > 16:
		fr.keep[n] = unsafe.Pointer(unsafe.SliceData(w))
		fr.nargs-- // placeWord notes the argument again
		fr.placeWord(uintptr(fr.keep[n]))
		fr.arg[n] = size
	case int(fr.nreg)+len(w) <= numRegs:
		fr.nreg += uint8(copy(fr.word[fr.nreg:], w))
	default:
		fr.nreg = numRegs
		for _, x := range w {
			fr.push(x)
		}
	}
}
