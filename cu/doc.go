// Package cu is the CUDA driver API in Go: typed calls over package
// [github.com/gpufd/gpufd/cu/sys], in pure Go, with libcuda opened at run time.
//
//	drv, err := cu.Open(cu.WithFallback(soft.Resolver)) // libcuda, or package cu/soft without a GPU
//	dev, err := drv.Device(0)
//	ctx, err := dev.PrimaryContext()
//	defer ctx.Close()
//	s, err := ctx.NewStream()
//	xs, err := cu.Alloc[float32](ctx, len(host)) // elements on the device
//	defer xs.Close()
//	err = cu.CopyToDevice(s, xs, host)
//	module, err := ctx.LoadModule(ptx)
//	kernel, err := module.Function("scale")
//	err = kernel.Launch(s, cu.LaunchConfig{Grid: cu.Dim3{X: 64}, Block: cu.Dim3{X: 256}}, xs, uint64(xs.Len()))
//	err = cu.CopyToHost(s, host, xs) // behind the kernel, in its stream
//
// examples/go/vector-add is such a program as a whole.
//
// # Open
//
// [Open] opens libcuda. With [WithFallback] it opens the software driver of package
// cu/soft where there is no GPU, and with [WithResolver] another driver in libcuda's
// place. A [Driver] is a value: there are no package-level drivers, and every object
// holds the one it came from.
// [Driver.Devices], [Driver.FindDevice] and [Device.Attribute] say what there is.
// Most calls need a [Context], as a rule the device's primary one.
//
// # Rules
//
// Any goroutine may make any call at any time. Each call binds its context
// itself, so no caller locks a thread. The context stays the thread's current one
// after the call: do not mix with code that relies on cuCtxGetCurrent.
//
// The caller owns what New, Create, Alloc, Import, Load and OpenIPC return, and ends
// it with Close, which waits for the calls in flight. Close of memory also waits for work
// that was queued before it ([WithCloseLimit]), that of a stream for room for one more event,
// and that of a context for all its work. Close may be called twice, and on nil; any other
// use after Close is [ErrClosed]. A context's Close ends what was made in it.
//
// A call that returns before its work is done takes a [*Stream], and its name ends in
// Async. The form without Async waits; it takes a [Queue], which is a stream or, for its
// null stream, a [*Context]. Some calls always return
// before, and have no Async in their names: [Function.Launch], [GraphExec.Upload],
// [Event.Record], [Stream.WaitEvent], [Stream.WaitValue32], [Stream.Call] and the like.
// The stream or context comes first, as receiver or first parameter; then destination,
// source and size. What is nil is [ErrClosed], too, and the error says which it is.
//
// # Memory
//
// [Alloc] allocates elements of a type in device memory, a [Slice]; [Context.Alloc]
// allocates bytes, [Context.AllocHost] pinned host memory, and [Stream.AllocAsync]
// memory of a [Pool] in the order of a stream.
// [Device.CreateMemory] makes physical memory for [Driver.Map]; package vmm owns
// such memory properly. A [DevicePtr] is an address on the device. Copies, fills and kernels
// take any [Pointer]: an address, or memory that has one. [View] makes a Slice of it.
//
// # Copies
//
// [CopyToDevice], [CopyToHost], [Copy], [CopyPeer], [Copy2D], [Copy3D], [Fill]
// and [Fill2D] queue their Async form in a stream and wait for it (cuStreamSynchronize).
// Give them the stream of the work before: in the null stream, for which a context stands,
// they do not wait for work of [Context.NewStream]. Slices hold numbers, or
// arrays and structs of numbers, as Go lays them out: see [ErrPointers]. What is longer than
// its memory is [ErrTooShort].
//
// # Streams
//
// [Context.NewStream] makes a queue of work; [Context.NullStream] is the driver's
// own. [Stream.Synchronize], [Event.Synchronize] and [Context.Synchronize] wait
// for it. They poll with growing pauses, so that a wait that is given up leaves no
// thread behind. If their context cannot end, they wait in the driver.
// [Stream.Capture] records work as a [Graph], to be launched many times.
//
// # Kernels
//
// [Context.LoadModule] loads PTX or machine code, [Module.Function] finds a
// kernel, and [Function.Launch] runs it. [Function.Prepare] makes a [Launch] for
// many runs. A [Library] is code for all contexts. Package kernels has ready-made ones.
//
// # Sharing
//
// Most programs want packages vmm and share, which build on this one. Physical
// memory and pools are shared as file descriptors ([MemHandle.Export],
// [Pool.Export]), or between machines as a [FabricHandle]. Legacy IPC, which CuPy,
// PyTorch, Numba and UCX speak, shares other memory and events as handles of 64 bytes:
// [Memory.IPCHandle], [Context.OpenIPC], [Event.IPCHandle],
// [Context.OpenIPCEvent]. A stream that waits for another process should have a
// deadline: [Event.Synchronize], [Stream.Guard].
//
// [Driver.Process] checkpoints a process, which frees its devices for a while. Memory of
// others has to be unmapped and released there before.
//
// # Errors
//
// A refused call is an [*Error] that begins with the driver's function, and other errors
// begin with cu; errors.Is matches it with
// its [Result], such as [ErrOutOfMemory]. A function that an old driver lacks is a
// [*SymbolError]. If work fails later, the process loses all its contexts, and every
// call in them fails with [ErrContextLost]. GPUFD_TRACE=1 prints every driver call on
// standard error. D18 and the like are rows of docs/driver-facts.md.
//
// # Raw calls
//
// [Driver.Caller] and [Context.Caller] make calls that are not typed here. They
// take the driver's own handles, which the Handle methods return. Such a handle is
// valid until Close, and while the object that it came from is reachable.
//
// # When not to use it
//
// Do not use it for the runtime API, or beside CUDA C++ code that drives contexts of
// its own on the same threads.
package cu
