package sys

import "unsafe"

// A Caller is a library with or without a context. The driver's functions are its
// methods. It is a small value that can be copied freely. The zero Caller answers
// CUDA_ERROR_NOT_INITIALIZED to everything.
type Caller struct {
	lib   *Library
	ctx   CUcontext
	owner unsafe.Pointer
}

// With returns a caller that makes ctx the calling thread's current context in
// the same crossing as each call, and leaves it so.
func (c Caller) With(ctx CUcontext) Caller {
	c.ctx = ctx
	return c
}

// Keep returns a caller that keeps the Go object at owner reachable during a
// call, so that a cleanup of owner cannot release a handle in use.
func (c Caller) Keep(owner unsafe.Pointer) Caller {
	c.owner = owner
	return c
}

// Library returns the library that c calls.
func (c Caller) Library() *Library { return c.lib }

// Context returns the context that c binds, or 0.
func (c Caller) Context() CUcontext { return c.ctx }
