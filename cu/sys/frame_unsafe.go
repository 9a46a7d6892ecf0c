package sys

import (
	"slices"
	"unsafe"
)

// maxArgs is the largest number of parameters of any driver function.
const maxArgs = 16

// words has room for as many arguments as registers carry on any platform. The
// routine in call_*.s reads all of it, however many arguments there are.
type words [8]uintptr

// A frame is one call on its way through the crossing: the routine in
// call_*.s reads it by offset. It lies on the goroutine's stack, as its words
// do, and the routine has read all of it before it calls anything: a C function
// that is a callback into Go can move that stack.
type frame struct {
	fn    uintptr   // address of the driver's function
	bind  uintptr   // address of cuCtxSetCurrent, or 0 for no context
	ctx   uintptr   // its argument
	after uintptr   // address of cuCtxPopCurrent_v2, to call if fn succeeded, or 0
	word  *words    // what goes in registers
	stack []uintptr // what goes on the C stack
	float [2]uint64 // floating-point arguments, bits in the low half

	// Below here is for Go only.
	pop bool // undo a push in the same crossing
}

// inRegisters returns the arguments that registers carry. args must have room for
// words.
func inRegisters(args []uintptr) *words { return (*words)(args[:len(words{})]) }

// onStack returns the other arguments.
func onStack(args []uintptr) []uintptr {
	if len(args) <= numRegs {
		return nil
	}
	return args[numRegs:]
}

// clone returns a copy of fr and its words on the heap, for a hook to keep.
func (fr *frame) clone() *frame {
	w := *fr.word
	return &frame{word: &w, stack: slices.Clone(fr.stack), float: fr.float, pop: fr.pop}
}

// address returns p as an argument word. The memory at p goes to the heap, where
// it stays in place: Go's stacks move. The caller keeps it alive.
func address(p unsafe.Pointer) uintptr {
	if never {
		panic(p) // what a panic may get must be on the heap
	}
	return uintptr(p)
}

// never is false, but the compiler does not know. The runtime's
// internal/abi.Escape does the same.
var never bool
