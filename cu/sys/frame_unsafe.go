package sys

import (
	"sync"
	"unsafe"
)

// maxWords bounds the argument words of one call, with by-value structs that
// the stack carries. A larger struct spills.
const maxWords = 24

// maxArgs is the largest number of parameters of any driver function.
const maxArgs = 16

// A frame is one call on its way through the crossing: the routine in
// call_*.s reads it by offset. Frames live on the heap and are pooled, so that
// a call allocates nothing and everything the driver is given by address is
// kept alive by keep until the call is over.
type frame struct {
	fn     uintptr        // address of the driver's function
	bind   uintptr        // address of cuCtxSetCurrent, or 0 for no context
	ctx    uintptr        // its argument
	stack  unsafe.Pointer // first word that goes on the C stack
	nstack uintptr        // how many do
	result uintptr        // what fn returned; only the low 32 bits count
	after  uintptr        // address of a function to call if fn succeeded, or 0
	popped uintptr        // where cuCtxPopCurrent_v2, which after is, stores the context
	float  [2]uint64      // floating-point arguments, bits in the low half
	word   [maxWords]uintptr
	bound  uint32 // what cuCtxSetCurrent returned

	// Below here is for Go only.
	nreg, nfloat, nplaced, nargs uint8
	pop                          bool                        // undo a push in the same crossing
	keep                         [maxArgs + 1]unsafe.Pointer // the last is the owner
	arg                          [maxArgs]uintptr            // placed arguments in C's order, for trace
	spill                        []uintptr                   // stack words that word cannot hold
}

var frames = sync.Pool{New: func() any {
	fr := new(frame)
	fr.stack = unsafe.Pointer(&fr.word[numRegs])
	return fr
}}

func newFrame() *frame { return frames.Get().(*frame) }

// free returns fr to the pool and lets go of what it kept alive.
func (fr *frame) free(n int) {
	clear(fr.keep[:n])
	fr.keep[maxArgs] = nil
	fr.pop = false
	if fr.nargs > 0 {
		fr.reset()
	}
	frames.Put(fr)
}

// reset undoes what the place methods did.
func (fr *frame) reset() {
	clear(fr.keep[:])
	fr.nreg, fr.nfloat, fr.nplaced, fr.nargs = 0, 0, 0, 0
	fr.spill = nil
	fr.stack = unsafe.Pointer(&fr.word[numRegs])
}

// pointer makes argument i the address p of memory that the driver may read or
// write. Storing p in the frame is what moves that memory to the heap.
func (fr *frame) pointer(i int, p unsafe.Pointer) {
	fr.keep[i] = p
	fr.word[i] = uintptr(p)
}

// The place methods lay arguments out one by one, for functions that take
// structs by value or floats; the others use word and pointer directly.

func (fr *frame) placeWord(x uintptr) {
	fr.note(x)
	if fr.nreg < numRegs {
		fr.word[fr.nreg] = x
		fr.nreg++
		return
	}
	fr.push(x)
}

func (fr *frame) placePointer(p unsafe.Pointer) {
	fr.keep[fr.nargs] = p
	fr.placeWord(uintptr(p))
}

func (fr *frame) placeFloat(x float32) {
	fr.note(uintptr(*(*uint32)(unsafe.Pointer(&x))))
	fr.float[fr.nfloat] = uint64(*(*uint32)(unsafe.Pointer(&x)))
	fr.nfloat++
}

// note remembers an argument as C orders it.
func (fr *frame) note(x uintptr) {
	fr.arg[fr.nargs] = x
	fr.nargs++
}

// push appends a word to what the C stack carries.
func (fr *frame) push(x uintptr) {
	n := int(fr.nplaced)
	if fr.spill == nil && numRegs+n < maxWords {
		fr.word[numRegs+n] = x
		fr.nplaced++
		return
	}
	if fr.spill == nil {
		fr.spill = append(make([]uintptr, 0, 4*maxWords), fr.word[numRegs:numRegs+n]...)
	}
	fr.spill = append(fr.spill, x)
	fr.stack = unsafe.Pointer(unsafe.SliceData(fr.spill))
}

// stackWords is the number of words that push put there.
func (fr *frame) stackWords() int {
	if fr.spill != nil {
		return len(fr.spill)
	}
	return int(fr.nplaced)
}

// words is the size bytes at p as whole words, the last padded with zeros.
func words(p unsafe.Pointer, size uintptr) []uintptr {
	w := make([]uintptr, (size+7)/8)
	if size > 0 {
		copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), size), unsafe.Slice((*byte)(p), size))
	}
	return w
}
