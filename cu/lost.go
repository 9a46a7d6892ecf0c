package cu

import (
	"errors"
	"sync/atomic"
)

// ErrContextLost matches every error of a context that is lost: the one that
// first told of it and all that follow. A context is lost when asynchronous
// work in it fails, with [ErrIllegalAddress] or [ErrLaunchFailed] for example.
var ErrContextLost = errors.New("cu: the context is lost")

// A LostError is a call that was not made, because its context is lost. It
// matches [ErrContextLost] and what its Cause matches.
type LostError struct {
	Op    string // the driver function that was not called
	Cause *Error // the failure, as the call that noticed it first was told
}

// Error tells of the failure and of the call that noticed it.
func (e *LostError) Error() string {
	return e.Op + " was not called: the context is lost: " + e.Cause.Error()
}

// Is matches [ErrContextLost].
func (e *LostError) Is(target error) bool { return target == ErrContextLost }

// Unwrap returns the Cause.
func (e *LostError) Unwrap() error { return e.Cause }

// Fatal reports whether r is a failure of asynchronous work, which a context
// does not survive. The call that is told of it is the next one made, seldom
// the one that is to blame.
func (r Result) Fatal() bool {
	switch r {
	case ErrECCUncorrectable, ErrNVLinkUncorrectable, ErrContained,
		ErrIllegalAddress, ErrLaunchTimeout, ErrAssert, ErrHardwareStackError, ErrIllegalInstruction,
		ErrMisalignedAddress, ErrInvalidAddressSpace, ErrInvalidPC, ErrLaunchFailed, ErrTensorMemoryLeak:
		return true
	}
	return false
}

// A fate is whether a context is lost, and to what. All Contexts that are the
// same one to the driver share it.
type fate struct{ lost atomic.Pointer[Error] }

// notice remembers a failure that the context does not survive.
func (f *fate) notice(err error) {
	if e, ok := err.(*Error); ok && e.Result.Fatal() {
		f.lost.CompareAndSwap(nil, e)
	}
}

// refuse is the error of a call that is not made, or nil if the context is
// well as far as is known.
func (f *fate) refuse(op string) error {
	if e := f.lost.Load(); e != nil {
		return &LostError{Op: op, Cause: e}
	}
	return nil
}

// A primary is what a device's Contexts share while there are any: the driver
// may destroy the context with the last of them and make a new one.
type primary struct {
	users int
	fate  *fate
}

// join counts one more Context of the primary context.
func (dev *Device) join() *fate {
	dev.mu.Lock()
	defer dev.mu.Unlock()
	if dev.primary.users++; dev.primary.users == 1 {
		dev.primary.fate = new(fate)
	}
	return dev.primary.fate
}

// leave undoes join.
func (dev *Device) leave() {
	dev.mu.Lock()
	defer dev.mu.Unlock()
	dev.primary.users--
}
