package sys

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// shapeOf gives the parameters of the C function that a method of Caller
// calls: floats and structs by value as they are, everything else a word.
func shapeOf(method any) []reflect.Type { return shapeOfType(reflect.TypeOf(method)) }

func shapeOfType(method reflect.Type) []reflect.Type {
	var shape []reflect.Type
	for i := 1; i < method.NumIn(); i++ {
		switch in := method.In(i); in.Kind() {
		case reflect.Float32, reflect.Struct:
			shape = append(shape, in)
		default:
			shape = append(shape, reflect.TypeFor[uintptr]())
		}
	}
	return shape
}

// driverMethods gives every generated method by its symbol.
func driverMethods() map[string]reflect.Method {
	methods := map[string]reflect.Method{}
	for m := range reflect.TypeFor[Caller]().Methods() {
		if strings.HasPrefix(m.Name, "Cu") {
			methods["c"+m.Name[1:]] = m
		}
	}
	return methods
}

// Each of the 500 methods is called with a value of its own for every
// parameter, without and with a context, and the C function under its exact
// symbol must see just those values in just that order.
func TestEveryMethodPassesEveryArgument(t *testing.T) {
	methods := driverMethods()
	require.Len(t, methods, numFunctions)
	var asked []string
	var calls [][]reflect.Value
	recorder := func(method reflect.Type) uintptr {
		return newCFunc(t, shapeOfType(method), func(args []reflect.Value) uintptr {
			calls = append(calls, args)
			return garbage
		})
	}
	c := NewLibrary(func(symbol string) (uintptr, error) {
		asked = append(asked, symbol)
		return recorder(methods[symbol].Type), nil
	}).Caller()
	const ctx = CUcontext(0xc0de00c0de)
	c.With(ctx).CuCtxSetCurrent(0)
	require.Equal(t, []string{bindSymbol}, asked)
	c.CuCtxPopCurrent_v2(new(CUcontext)) // cuCtxCreate ends with it

	for _, symbol := range Symbols() {
		m := methods[symbol]
		values := distinctValues(m.Type)
		asked, calls = nil, nil

		require.Equal(t, CUDA_SUCCESS, invoke(m, c, values), symbol)
		if symbol != bindSymbol && symbol != popSymbol {
			require.Equal(t, []string{symbol}, asked)
		}
		calls = withoutPop(symbol, calls)
		require.Len(t, calls, 1, symbol)
		requireArguments(t, symbol, values, calls[0])

		calls = nil
		require.Equal(t, CUDA_SUCCESS, invoke(m, c.With(ctx), values), symbol)
		calls = withoutPop(symbol, calls)
		require.Len(t, calls, 2, symbol)
		require.EqualValues(t, ctx, calls[0][0].Uint(), symbol)
		requireArguments(t, symbol, values, calls[1])
	}
}

// A hook sees the same arguments in C's order, whichever way they travel.
func TestEveryMethodShowsItsArgumentsToAHook(t *testing.T) {
	l := library(nil)
	for symbol, m := range driverMethods() {
		values := distinctValues(m.Type)
		l.SetHook(func(call Call, _ func() CUresult) CUresult {
			require.Equal(t, symbol, call.Symbol())
			require.Len(t, call.args, len(values), symbol)
			for i, v := range values {
				require.Equal(t, traced(v), low(call.Arg(i), v.Type()), "%s, argument %d", symbol, i)
			}
			require.Contains(t, call.String(), symbol+"(")
			return CUDA_ERROR_UNKNOWN
		})
		require.Equal(t, CUDA_ERROR_UNKNOWN, invoke(m, l.Caller(), values), symbol)
	}
}

func invoke(m reflect.Method, c Caller, values []reflect.Value) CUresult {
	out := m.Func.Call(append([]reflect.Value{reflect.ValueOf(c)}, values...))
	return out[0].Interface().(CUresult)
}

// distinctValues makes an argument for each parameter that no other parameter
// has.
func distinctValues(method reflect.Type) []reflect.Value {
	values := make([]reflect.Value, 0, method.NumIn())
	for i := 1; i < method.NumIn(); i++ {
		v := reflect.New(method.In(i)).Elem()
		x := distinct(i)
		switch v.Kind() {
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
		case reflect.UnsafePointer:
			v.SetPointer(unsafe.Pointer(new(uint64)))
		case reflect.Float32:
			v.SetFloat(float64(i) + 0.25)
		case reflect.Int32:
			v.SetInt(-int64(uint32(x)))
		case reflect.Struct:
			b := unsafe.Slice((*byte)(v.Addr().UnsafePointer()), v.Type().Size())
			for j := range b {
				b[j] = byte(x) + byte(j)
			}
		default:
			v.SetUint(uint64(x) & (1<<(8*v.Type().Size()-1)<<1 - 1))
		}
		values = append(values, v)
	}
	return values
}

func requireArguments(t *testing.T, symbol string, want, got []reflect.Value) {
	require.Len(t, got, len(want), symbol)
	for i, v := range want {
		switch v.Kind() {
		case reflect.Float32, reflect.Struct:
			require.Equal(t, v.Interface(), got[i].Interface(), "%s, argument %d", symbol, i)
		default:
			require.Equal(t, word(v), low(uintptr(got[i].Uint()), v.Type()), "%s, argument %d", symbol, i)
		}
	}
}

// traced is the word that a hook sees of v.
func traced(v reflect.Value) uintptr {
	switch v.Kind() {
	case reflect.Float32:
		return uintptr(math.Float32bits(float32(v.Float())))
	case reflect.Struct:
		return v.Type().Size()
	}
	return word(v)
}

// word is the argument word of v, of which only the type's own bytes count.
func word(v reflect.Value) uintptr {
	switch v.Kind() {
	case reflect.Pointer, reflect.UnsafePointer:
		return v.Pointer()
	case reflect.Int32:
		return low(uintptr(v.Int()), v.Type())
	}
	return uintptr(v.Uint())
}

// low cuts x to the bytes of typ, as C reads it; of a struct's size nothing.
func low(x uintptr, typ reflect.Type) uintptr {
	if size := typ.Size(); size < 8 && typ.Kind() != reflect.Struct {
		return x & (1<<(8*size) - 1)
	}
	return x
}

const popSymbol = "cuCtxPopCurrent_v2"

// withoutPop takes the pop away that follows each cuCtxCreate.
func withoutPop(symbol string, calls [][]reflect.Value) [][]reflect.Value {
	if strings.HasPrefix(symbol, "cuCtxCreate") && len(calls) > 0 && len(calls[len(calls)-1]) == 1 {
		return calls[:len(calls)-1]
	}
	return calls
}
