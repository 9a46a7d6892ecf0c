package sys

import (
	"errors"
	"reflect"
	"sync"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"
)

// garbage is what the C functions of these tests leave in the upper half of a
// result of 32 bits, as C functions may.
const garbage = uintptr(0xdeadbeef) << 32

// A cfunc is a C function whose body a test can set. Callbacks are never
// freed, so functions of the same shape are used again.
type cfunc struct {
	addr uintptr
	body func(args []reflect.Value) uintptr
}

var idle = struct {
	sync.Mutex
	byShape map[reflect.Type][]*cfunc
}{byShape: map[reflect.Type][]*cfunc{}}

// newCFunc returns the address of a C function that takes params and runs
// body. It may be called until the test ends.
func newCFunc(t testing.TB, params []reflect.Type, body func(args []reflect.Value) uintptr) uintptr {
	shape := reflect.FuncOf(params, []reflect.Type{reflect.TypeFor[uintptr]()}, false)
	f := takeCFunc(shape)
	f.body = body
	t.Cleanup(func() {
		idle.Lock()
		defer idle.Unlock()
		idle.byShape[shape] = append(idle.byShape[shape], f)
	})
	return f.addr
}

func takeCFunc(shape reflect.Type) *cfunc {
	idle.Lock()
	defer idle.Unlock()
	if list := idle.byShape[shape]; len(list) > 0 {
		f := list[len(list)-1]
		idle.byShape[shape] = list[:len(list)-1]
		return f
	}
	f := new(cfunc)
	f.addr = purego.NewCallback(reflect.MakeFunc(shape, func(args []reflect.Value) []reflect.Value {
		return []reflect.Value{reflect.ValueOf(f.body(args))}
	}).Interface())
	return f
}

// wordFunc returns the address of a C function of n words.
func wordFunc(t testing.TB, n int, body func(w []uintptr) uintptr) uintptr {
	params := make([]reflect.Type, n)
	for i := range params {
		params[i] = reflect.TypeFor[uintptr]()
	}
	return newCFunc(t, params, func(args []reflect.Value) uintptr { return body(toWords(args)) })
}

func toWords(args []reflect.Value) []uintptr {
	w := make([]uintptr, len(args))
	for i, a := range args {
		w[i] = uintptr(a.Uint())
	}
	return w
}

// library is a driver that has these functions and no others.
func library(funcs map[string]uintptr) *Library {
	return NewLibrary(func(symbol string) (uintptr, error) {
		if addr, ok := funcs[symbol]; ok {
			return addr, nil
		}
		return 0, errors.New("no such symbol: " + symbol)
	})
}

// libc returns the C library's own resolver: C functions that C made.
func libc(t testing.TB) Resolver {
	r, err := OpenFile("libc.so.6")
	require.NoError(t, err)
	return r
}

// libcLibrary is a driver whose functions are libc's: symbols maps one to the
// other.
func libcLibrary(t testing.TB, symbols map[string]string) *Library {
	r := libc(t)
	return NewLibrary(func(symbol string) (uintptr, error) {
		name, ok := symbols[symbol]
		if !ok {
			return 0, errors.New("no such symbol: " + symbol)
		}
		return r(name)
	})
}
