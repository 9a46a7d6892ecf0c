package cu

import (
	"errors"
	"reflect"
	"sync"
)

// ErrPointers says that a slice to be copied holds something other than numbers.
// A pointer would come back from the device as garbage that the Go runtime
// follows, and not every byte is a bool.
var ErrPointers = errors.New("cu: only numbers, and arrays and structs of them, can be copied")

var plainTypes sync.Map // reflect.Type → bool

// isNumbers reports whether t consists of numbers alone. It remembers types that take
// looking into, so that copies do not allocate.
func isNumbers(t reflect.Type) bool {
	if isNumber(t.Kind()) {
		return true
	}
	if is, ok := plainTypes.Load(t); ok {
		return is.(bool)
	}
	is := madeOfNumbers(t)
	plainTypes.Store(t, is)
	return is
}

func madeOfNumbers(t reflect.Type) bool {
	switch k := t.Kind(); {
	case k == reflect.Array:
		return madeOfNumbers(t.Elem())
	case k == reflect.Struct:
		for i := range t.NumField() {
			if !madeOfNumbers(t.Field(i).Type) {
				return false
			}
		}
		return true
	default:
		return isNumber(k)
	}
}

func isNumber(k reflect.Kind) bool { return k >= reflect.Int && k <= reflect.Complex128 }
