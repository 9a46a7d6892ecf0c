package sys

import (
	"math"
	"unsafe"
)

// placed are arguments that were laid out one by one, for functions that take
// structs by value or floats.
type placed struct {
	word  words
	float [2]uint64
	stack []uintptr
	room  [16]uintptr // of stack, as long as it does

	nreg, nfloat, nargs uint8
	arg                 [maxArgs]uintptr        // in C's order, for hooks
	keep                [maxArgs]unsafe.Pointer // alive until the call is over
}

func newPlaced() *placed {
	p := new(placed)
	p.stack = p.room[:0]
	return p
}

// placeWord lays out an integer or a handle.
func (p *placed) placeWord(x uintptr) {
	p.note(x)
	if p.nreg == numRegs {
		p.stack = append(p.stack, x)
		return
	}
	p.word[p.nreg] = x
	p.nreg++
}

// placePointer lays out the address of memory that the driver may read or
// write.
func (p *placed) placePointer(x unsafe.Pointer) {
	p.keep[p.nargs] = x
	p.placeWord(address(x))
}

func (p *placed) placeFloat(x float32) {
	bits := math.Float32bits(x)
	p.note(uintptr(bits))
	p.float[p.nfloat] = uint64(bits)
	p.nfloat++
}

// note remembers an argument as C orders it.
func (p *placed) note(x uintptr) {
	p.arg[p.nargs] = x
	p.nargs++
}

// wholeWords returns the size bytes at x as whole words, the last padded with
// zeros.
func wholeWords(x unsafe.Pointer, size uintptr) []uintptr {
	w := make([]uintptr, (size+7)/8)
	if size > 0 {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), size), unsafe.Slice((*byte)(x), size))
	}
	return w
}
