// Package cu is the CUDA driver API in Go: typed calls over package
// [github.com/gpufd/gpufd/cu/sys], in pure Go, with libcuda opened at run time.
//
//	drv, err := cu.Open()
//	dev, err := drv.Device(0)
//	ctx, err := dev.PrimaryContext()
//	defer ctx.Close()
//
// A [Driver] is a value: there are no package-level drivers, and every object
// holds the one it came from. [WithFallback] opens the software driver of
// package cu/soft where there is no GPU; [WithResolver] puts it in libcuda's place.
//
// Any goroutine may make any call at any time. The context that a call needs
// is bound in the same crossing, so no caller ever locks a thread. A call
// overwrites its thread's current CUDA context and leaves it so; do not mix
// with code that counts on cuCtxGetCurrent.
//
// # Ownership
//
// What New, Open, Create, Alloc and Import return is owned by the caller, who
// ends it with Close. Close is idempotent and may be called on nil; use after
// Close is [ErrClosed]. Close waits for the calls in flight. A context's Close
// ends the streams, events, graphs, modules and memory that were made in it.
//
// # Errors
//
// A refused driver call is an [*Error] that names the call and carries the
// driver's text; errors.Is matches it with [ErrNotSupported] and its sisters. A
// function the driver is too old for is a [*SymbolError]. Work that fails later
// costs the process all its contexts, which then say [ErrContextLost].
//
// # Other processes
//
// Physical memory is shared as a file descriptor ([MemHandle.Export]), a pool
// likewise, or between machines as a [FabricHandle]. Legacy IPC, which CuPy,
// PyTorch, Numba and UCX speak, shares memory of [Context.Alloc] and events as 64
// bytes: [Memory.IPCHandle], [Context.OpenIPC], [Event.IPCHandle],
// [Context.OpenIPCEvent]. A stream that waits for another process should have a
// deadline: [IPCOrder], [Stream.Guard].
//
// # Who should not use it
//
// Programs that want the runtime API, or CUDA C++ in the same process driving
// contexts of its own on the same threads. For sharing memory between
// processes use packages vmm and share, which stand on this one.
//
// # Debugging
//
// GPUFD_TRACE=1 prints every driver call on standard error.
package cu
