package cu

import (
	"fmt"
	"reflect"
)

// A closedError says which handle of an operation cannot be used, and why. It matches [ErrClosed].
type closedError struct{ op, what, state string }

// unusable returns the error of an operation, a driver function as a rule, on a handle that is nil
// or closed.
func unusable(op, what string, isNil bool) error {
	if isNil {
		return &closedError{op, what, "nil"}
	}
	return &closedError{op, what, "closed"}
}

// noAddress returns the error of an operation on memory whose Ptr is 0.
func noAddress(op, what string, p any) error {
	if v := reflect.ValueOf(p); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return unusable(op, what, true)
	}
	return &closedError{op, fmt.Sprintf("%s, a %T,", what, p), "closed, or has 0 bytes"}
}

// Error names the operation and the handle.
func (e *closedError) Error() string { return fmt.Sprintf("cu: %s: %s is %s", e.op, e.what, e.state) }

// Unwrap returns [ErrClosed].
func (e *closedError) Unwrap() error { return ErrClosed }
