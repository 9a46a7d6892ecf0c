package cu

import (
	"errors"
	"sync/atomic"
)

// ErrContextLost matches every error of a lost context, the first and all that
// follow. When asynchronous work fails, with [ErrIllegalAddress] or
// [ErrLaunchFailed] for example, the process loses all its contexts, on every
// device, and the driver makes no new ones. Calls without a context, such as
// [Device.CreateMemory], still work, and so does closing.
var ErrContextLost = errors.New("cu: the context is lost")

// A ContextLostError is a call that was not made because its context is lost. It matches
// [ErrContextLost] and what its Cause matches.
type ContextLostError struct {
	Op    string // the driver function that was not called
	Cause *Error // the failure, as the first call that noticed it got it
}

// Error names the failure, the call that noticed it and the call that was not
// made, on a line of at most 200 characters; the next line says what to do.
func (e *ContextLostError) Error() string { return e.Cause.loss(", so " + e.Op + " was not called") }

// Is matches [ErrContextLost].
func (e *ContextLostError) Is(target error) bool { return target == ErrContextLost }

// Unwrap returns the Cause.
func (e *ContextLostError) Unwrap() error { return e.Cause }

// Fatal reports whether r is a failure of asynchronous work, which no context
// survives. The next call gets it, seldom the one to blame.
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

// A lostState says whether the contexts of a driver are lost, and why. All share one:
// the driver loses them together, and makes no new ones.
type lostState struct{ lost atomic.Pointer[Error] }

// notice remembers a failure that no context survives.
func (l *lostState) notice(err error) {
	if e, ok := err.(*Error); ok && e.Result.Fatal() && l.lost.CompareAndSwap(nil, e) {
		hostFuncs.drop(l)
	}
}

// isLost reports whether the contexts are known to be lost.
func (l *lostState) isLost() bool { return l.lost.Load() != nil }

// refuse returns the error of a call that is not made, or nil if the contexts are
// not known to be lost.
func (l *lostState) refuse(op string) error {
	if e := l.lost.Load(); e != nil {
		return &ContextLostError{Op: op, Cause: e}
	}
	return nil
}
