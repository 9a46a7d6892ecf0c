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

// numberTypes are the types that are made of numbers of some kinds alone.
type numberTypes struct {
	kind  func(reflect.Kind) bool
	known sync.Map // reflect.Type → bool
}

// These can be copied, and be arguments of a kernel.
var (
	copyable  = numberTypes{kind: isNumber}
	arguments = numberTypes{kind: isFixed}
)

// has reports whether t is one of the types. It remembers those that take looking into, so that
// copies do not allocate.
func (n *numberTypes) has(t reflect.Type) bool {
	if n.kind(t.Kind()) {
		return true
	}
	if is, ok := n.known.Load(t); ok {
		return is.(bool)
	}
	is := n.isMadeOf(t)
	n.known.Store(t, is)
	return is
}

func (n *numberTypes) isMadeOf(t reflect.Type) bool {
	switch k := t.Kind(); {
	case k == reflect.Array:
		return n.isMadeOf(t.Elem())
	case k == reflect.Struct:
		for i := range t.NumField() {
			if !n.isMadeOf(t.Field(i).Type) {
				return false
			}
		}
		return true
	default:
		return n.kind(k)
	}
}

func isNumber(k reflect.Kind) bool { return k >= reflect.Int && k <= reflect.Complex128 }
