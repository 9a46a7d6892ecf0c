// Package sys is the CUDA driver API as C declares it: every function of CUDA
// 13.0 and the older ABIs of the same names as methods of [Caller], under
// their exact symbols, with their C types, enums and structs. Names, order and
// meaning are C's; there is one Go method per C function and nothing between.
//
// Most programs want package cu, which is typed Go over this. Package sys is
// for what cu does not wrap yet, and for those who write drivers (cu/soft).
//
// # The crossing
//
// A [Library] is a resolver of symbols and the addresses it has found so far.
// [OpenCUDA] makes the resolver of libcuda; the software driver is another.
// Every call goes through one function and one assembly routine per
// architecture, with CGO_ENABLED=0 or 1. With a context ([Caller.With]) the
// routine makes cuCtxSetCurrent and the call without returning to Go in
// between, so no goroutine ever needs to lock its thread. The thread's current
// context is overwritten and left so.
//
// # What bites
//
// Memory that the driver reads or writes is passed as a pointer and moves to
// the heap; it must stay alive until the driver is done with it, which for
// asynchronous calls is after the call. Where the driver is given an address as a
// number (in a struct, among values), [Address] pins the memory. Opaque values
// (handles, file descriptors in `void *`, user data) are uintptr. Pointers stored
// in unions are hidden from the garbage collector.
//
// The driver does not protect a caller from itself: cuMemRelease of a value
// that is no handle kills the process. Package cu tracks that; this one does
// not.
//
// # Debugging
//
// [Library.SetHook] with [Trace] prints each call as strace prints system
// calls. Package cu does it when GPUFD_TRACE=1.
package sys
