package cu

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/gpumem"
)

// ErrClosed says that a handle was used after its Close. Nothing reached the
// driver. It is [gpumem.ErrClosed].
var ErrClosed = gpumem.ErrClosed

// ErrSymbolMissing matches every [*SymbolError].
var ErrSymbolMissing = errors.New("cu: the driver lacks this function")

// Result is a driver result other than success, as an error: CUresult. The
// Err… constants are all of them.
type Result sys.CUresult

// Error gives the result's name in C.
func (r Result) Error() string { return sys.CUresult(r).String() }

// An Error is a driver call that failed. errors.Is matches it with its Result:
//
//	if errors.Is(err, cu.ErrOutOfMemory) { … }
type Error struct {
	Op     string // the driver function, e.g. cuMemMap
	Result Result
	Text   string // the driver's own words, from cuGetErrorString
	Detail string // what was wrong with the arguments, if that was found out
	Bind   bool   // cuCtxSetCurrent failed, so that Op was not called
	Kind   Kind   // of the driver; 0 if the call was refused without asking one
}

// Error prints the call, the result's name and number, the driver's words
// (cuGetErrorString) and, if known, what was wrong and what to do. A result that
// loses all contexts comes first, on a line of at most 200 characters, and the
// rest on a second line.
func (e *Error) Error() string {
	if e.Result.Fatal() {
		return e.loss("")
	}
	op := e.Op
	if e.Bind {
		op += " (binding its context)"
	}
	msg := fmt.Sprintf("%s: %s (%d)", op, e.Result.Error(), uint32(e.Result))
	if e.Text != "" {
		msg += ": " + e.Text
	}
	if e.Detail != "" {
		msg += ": " + e.Detail
	}
	if h := e.hint(); h != "" {
		msg += "; " + h
	}
	return msg
}

// loss prints a result that loses all contexts, and what became of a call. The
// first line fits 200 characters for all functions and results; the driver's
// words need not.
func (e *Error) loss(outcome string) string {
	first := fmt.Sprintf("%s (%d), noticed by %s: the context is lost%s", e.Result.Error(), uint32(e.Result), e.failed(), outcome)
	below := cmp.Or(e.hint(), "work queued earlier has failed, so every later call in any context of this process fails and no new context can be made: restart the process")
	if e.Text != "" {
		below = e.Text + "; " + below
	}
	if e.Kind == Soft {
		below += "; soft.LastFault says what failed, and where"
	}
	return first + "\n" + below
}

// failed is the driver function that failed.
func (e *Error) failed() string {
	if e.Bind {
		return "cuCtxSetCurrent"
	}
	return e.Op
}

// Is matches [ErrContextLost] if that is what the result means.
func (e *Error) Is(target error) bool { return target == ErrContextLost && e.Result.Fatal() }

// Unwrap returns the Result.
func (e *Error) Unwrap() error { return e.Result }

// A SymbolError is a call to a function that this driver does not export.
type SymbolError struct {
	Symbol string // exact symbol, e.g. cuMemCreate
	Needs  int    // CUDA version that introduced it (11040 is 11.4); 0 unknown
	Has    int    // CUDA version of the driver
	Kind   Kind   // of the driver
}

// Error names the symbol and, as far as they are known, the versions.
func (e *SymbolError) Error() string {
	msg := e.Symbol + ": the driver does not have this function"
	if e.Needs > 0 {
		msg += ", which came with CUDA " + sys.Version(e.Needs)
	}
	if e.Has > 0 {
		msg += "; the driver is of CUDA " + sys.Version(e.Has)
	}
	switch {
	case e.Has == 0 || e.Has >= e.Needs:
	case e.Kind == Soft:
		msg += "; unset GPUFD_SOFT_VERSION, or set it to that CUDA version"
	default:
		msg += "; install a newer driver"
	}
	return msg
}

// Is matches [ErrSymbolMissing].
func (e *SymbolError) Is(target error) bool { return target == ErrSymbolMissing }

// check turns the result of the driver function op into an error. Driver errors
// are made nowhere else.
func (d *Driver) check(op string, r sys.CUresult) error {
	if r == sys.CUDA_SUCCESS {
		return nil
	}
	inner, bind := r.BindFailed()
	if inner == sys.SymbolMissing {
		if bind {
			op = "cuCtxSetCurrent"
		}
		needs, _ := sys.Since(op)
		return &SymbolError{Symbol: op, Needs: needs, Has: d.version, Kind: d.kind}
	}
	return &Error{Op: op, Result: Result(inner), Text: d.text(inner), Bind: bind, Kind: d.kind}
}

// text is the driver's description of r.
func (d *Driver) text(r sys.CUresult) string {
	p := new(*byte)
	if d.call.CuGetErrorString(r, p) != sys.CUDA_SUCCESS {
		return ""
	}
	return sys.GoString(*p, 1024)
}
