package sys

import (
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"
)

// A Hook stands around every call of a library: it may look, make the call by
// calling next, answer in the driver's stead, or change the answer. It runs on
// the calling goroutine, from many at once; call and next are valid until it
// returns.
type Hook func(call Call, next func() CUresult) CUresult

// Nest returns the hook that puts each of hooks around the next: the first is
// what the caller meets, the last is closest to the driver. Of none it is nil.
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

// Symbol is the function's exact symbol.
func (c Call) Symbol() string { return functions[c.id].symbol }

// Context is the context bound in the same crossing, or 0.
func (c Call) Context() CUcontext { return c.ctx }

// Arg is the argument word at index i in C's order; 32-bit arguments are in
// the low half, and a struct by value gives its size in bytes.
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
