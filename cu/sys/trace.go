package sys

import (
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"
)

// A Hook is called instead of every driver call of a library. It may look, make
// the call by calling next, answer instead of the driver, or change the answer.
// It runs on the calling goroutine, on many at once; call and next are valid
// until it returns.
type Hook func(call Call, next func() CUresult) CUresult

// Nest returns one hook that nests hooks: the first is outermost, the last is
// closest to the driver. Without hooks it returns nil.
func Nest(hooks ...Hook) Hook {
	switch len(hooks) {
	case 0:
		return nil
	case 1:
		return hooks[0]
	}
	inner := Nest(hooks[1:]...)
	return func(call Call, next func() CUresult) CUresult {
		return hooks[0](call, func() CUresult { return inner(call, next) })
	}
}

// A Call describes one call to a [Hook].
type Call struct {
	id   funcID
	args []uintptr
	ctx  CUcontext
}

// Symbol returns the function's exact symbol.
func (c Call) Symbol() string { return functions[c.id].symbol }

// Context returns the context bound in the same crossing, or 0.
func (c Call) Context() CUcontext { return c.ctx }

// Arg returns argument word i in C's order. A 32-bit argument is in the low half;
// a struct by value gives its size in bytes.
func (c Call) Arg(i int) uintptr { return c.args[i] }

// String prints the call as C would write it.
func (c Call) String() string {
	kinds := strings.Fields(functions[c.id].kinds)
	args := make([]string, len(kinds))
	for i, k := range kinds {
		args[i] = formatArg(k, c.args[i])
	}
	return c.Symbol() + "(" + strings.Join(args, ", ") + ")"
}

func formatArg(kind string, x uintptr) string {
	switch kind[0] {
	case 'd':
		return fmt.Sprint(int32(x))
	case 'u':
		return fmt.Sprint(x)
	case 'f':
		return fmt.Sprint(math.Float32frombits(uint32(x)))
	case 'e':
		return enumNames[kind[1:]](uint32(x))
	case 's':
		return cString(x)
	case 'v':
		return fmt.Sprintf("{%d bytes}", x)
	case 'x':
		if x == 0 {
			return "0"
		}
	}
	return fmt.Sprintf("%#x", x)
}

// Trace returns a hook that writes one line per call to w, when the call is
// over, as strace does for system calls:
//
//	cuMemMap(0x7f2c00000000, 2097152, 0, 0x55d0c8, 0) = CUDA_SUCCESS <2.1µs>
func Trace(w io.Writer) Hook {
	var mu sync.Mutex
	return func(call Call, next func() CUresult) CUresult {
		text := call.String()
		start := time.Now()
		r := next()
		took := time.Since(start)
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(w, "%s = %s <%s>\n", text, resultText(r), micro(took))
		return r
	}
}

func resultText(r CUresult) string {
	inner, bind := r.BindFailed()
	text := inner.String()
	if inner == SymbolMissing {
		text = "symbol missing"
	}
	if bind {
		return "not called: cuCtxSetCurrent " + text
	}
	return text
}

// micro prints d with one decimal below a millisecond, as the driver's times
// are.
func micro(d time.Duration) string {
	if d < time.Millisecond {
		return fmt.Sprintf("%.1fµs", float64(d.Nanoseconds())/1e3)
	}
	return d.Round(time.Microsecond).String()
}
