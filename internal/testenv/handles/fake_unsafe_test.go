package handles

import (
	"reflect"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

// A fake is a driver that accepts every call and gives out what the test has set.
type fake struct {
	Table
	caller sys.Caller
	gives  uintptr
	result sys.CUresult
	during func() // happens while the driver works
}

func newFake() *fake {
	f := &fake{}
	lib := sys.NewLibrary(nil)
	lib.SetHook(sys.Nest(f.Hook, f.answer))
	f.caller = lib.Caller()
	return f
}

// answer takes the driver's place.
func (f *fake) answer(call sys.Call, _ func() sys.CUresult) sys.CUresult {
	m, ok := makers[call.Symbol()]
	switch {
	case !ok || f.result != sys.CUDA_SUCCESS:
	case !m.in:
		*(*uintptr)(pointer(call.Arg(m.arg))) = f.gives
	case m.kind == primary: // it stores the context, too
		*(*uintptr)(pointer(call.Arg(0))) = f.gives
	}
	if during := f.during; during != nil {
		f.during = nil
		during()
	}
	return f.result
}

// give has the driver give x out by a call of that symbol.
func (f *fake) give(t *testing.T, symbol string, x uintptr) {
	t.Helper()
	f.gives = x
	args := map[int]uintptr{}
	if m := makers[symbol]; m.in {
		args[m.arg] = x
	}
	f.call(t, symbol, args)
}

// take gives x back by a call of that symbol.
func (f *fake) take(t *testing.T, symbol string, x uintptr) {
	t.Helper()
	f.call(t, symbol, map[int]uintptr{0: x})
}

// call makes a call with these arguments. Others point to room, or are zero.
func (f *fake) call(t *testing.T, symbol string, args map[int]uintptr) {
	t.Helper()
	m := reflect.ValueOf(f.caller).MethodByName("C" + symbol[1:])
	require.True(t, m.IsValid(), "%s is no function of the driver", symbol)
	var in []reflect.Value
	for i := range m.Type().NumIn() {
		v := reflect.New(m.Type().In(i)).Elem()
		switch v.Kind() {
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
		case reflect.UnsafePointer:
			v.SetPointer(pointer(args[i]))
		case reflect.Int32:
			v.SetInt(int64(args[i]))
		case reflect.Uintptr, reflect.Uint32, reflect.Uint64:
			v.SetUint(uint64(args[i]))
		}
		in = append(in, v)
	}
	require.EqualValues(t, f.result, m.Call(in)[0].Uint())
}

// pointer is the pointer that an argument word is.
func pointer(x uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&x)) }

// room is where handles and addresses of these tests lie, as some of them are
// pointers.
var room [8]uint64

// address is the ith of room.
func address(i int) uintptr { return uintptr(unsafe.Pointer(&room[i])) }
