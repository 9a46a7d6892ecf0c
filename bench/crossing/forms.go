package main

// A form is a shape of call.
type form int

const (
	none   form = iota // no arguments, as cuCtxSynchronize
	four               // 4 integers, as cuStreamWriteValue64
	eleven             // 9 integers and 2 pointers, as cuLaunchKernel
	out                // a pointer to a variable that is there already, as cuCtxGetCurrent
	newOut             // a pointer to a new variable for each call
	numForms
)

func (f form) String() string {
	return [...]string{"0", "4", "11", "out-pointer", "new out-pointer"}[f]
}

// A way is a way to call C, for each form: a function that makes n calls in a
// loop of its own, so that nothing but the loop is added to each, and returns
// the result of the last: what the C function returned, or stored.
type way struct {
	name string
	run  [numForms]func(n int) uint64
}

// Names of ways.
const (
	oursPlain   = "ours"
	oursContext = "ours, context"
	byNumber    = "purego.SyscallN"
	byType      = "purego.RegisterFunc"
	plainCgo    = "cgo"
	boundCgo    = "cgo, set-current + call"
	lockedCgo   = "cgo, LockOSThread + set-current + call"
	executor    = "executor goroutine"
)

// boundContext is the context of the ways that set one. isdigit, which stands
// for cuCtxSetCurrent without cgo, answers 0 to it.
const boundContext = 1

// functions are the addresses of the C functions.
type functions struct{ f0, f4, f11, out, setCurrent uintptr }
