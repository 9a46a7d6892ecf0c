package cu

import (
	"errors"
	"sync/atomic"
)

// ErrContextLost matches every error of a context that is lost: the one that
// first told of it and all that follow. When asynchronous work fails, with
// [ErrIllegalAddress] or [ErrLaunchFailed] for example, all contexts of the
// process are lost, on every device, and the driver makes no new ones. What
// needs no context, such as [Device.CreateMemory], works on; closing works too.
var ErrContextLost = errors.New("cu: the context is lost")

// A LostError is a call that was not made, because its context is lost. It
// matches [ErrContextLost] and what its Cause matches.
type LostError struct {
	Op    string // the driver function that was not called
	Cause *Error // the failure, as the call that noticed it first was told
}

// Error tells of the failure and of the call that noticed it, and then of the one
// that was not made, on a line of at most 200 characters; below that, what to do.
func (e *LostError) Error() string { return e.Cause.loss(", so " + e.Op + " was not called") }

// Is matches [ErrContextLost].
func (e *LostError) Is(target error) bool { return target == ErrContextLost }

// Unwrap returns the Cause.
func (e *LostError) Unwrap() error { return e.Cause }

// Fatal reports whether r is a failure of asynchronous work, which no context
// survives. The call that is told of it is the next one made, seldom
// the one that is to blame.
func (r Result) Fatal() bool {
	switch r {
	case ErrECCUncorrectable, ErrNVLinkUncorrectable, ErrContained,
		ErrIllegalAddress, ErrLaunchTimeout, ErrAssert, ErrHardwareStackError, ErrIllegalInstruction,
		ErrMisalignedAddress, ErrInvalidAddressSpace, ErrInvalidPC, ErrLaunchFailed, ErrTensorMemoryLeak,
		ErrMPSClientTerminated, ErrExternalDevice:
		return true
	}
	return false
}

// A fate is whether the contexts of a driver are lost, and to what. All share
// one: the driver loses them together, and makes no new ones.
type fate struct{ lost atomic.Pointer[Error] }

// notice remembers a failure that no context survives.
func (f *fate) notice(err error) {
	if e, ok := err.(*Error); ok && e.Result.Fatal() && f.lost.CompareAndSwap(nil, e) {
		hostFuncs.drop(f)
	}
}

// isLost reports whether the contexts are lost as far as is known.
func (f *fate) isLost() bool { return f.lost.Load() != nil }

// refuse is the error of a call that is not made, or nil if all is well as far
// as is known.
func (f *fate) refuse(op string) error {
	if e := f.lost.Load(); e != nil {
		return &LostError{Op: op, Cause: e}
	}
	return nil
}
