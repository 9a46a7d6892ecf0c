package main

// A form is a shape of call.
type form int

const (
	four   form = iota // 4 integers, as cuStreamWriteValue64
	eleven             // 9 integers and 2 pointers, as cuLaunchKernel
	numForms
)

func (f form) String() string {
	return [...]string{"4", "11"}[f]
}

// A way is a way to call C, for each form: a function that makes n calls in a
// loop of its own, so that nothing but the loop is added to each, and returns
// the result of the last.
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
)

// boundContext is the context of the ways that set one. isdigit, which stands
// for cuCtxSetCurrent without cgo, answers 0 to it.
const boundContext = 1

// functions are the addresses of the C functions.
type functions struct{ f4, f11, setCurrent uintptr }
