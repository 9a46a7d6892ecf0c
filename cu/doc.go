// Package cu is the CUDA driver API in Go: typed calls over package
// [github.com/gpufd/gpufd/cu/sys], in pure Go, with libcuda opened at run time.
//
// # Open
//
// [Open] opens libcuda. With [WithFallback] it opens the software driver of package
// cu/soft where there is no GPU, and with [WithResolver] another driver in libcuda's
// place. A [Driver] is a value: there are no package-level drivers, and every object
// holds the one it came from.
// [Driver.Devices], [Driver.FindDevice] and [Device.Attribute] say what there is.
// Most calls need a [Context], as a rule the device's primary one:
//
//	drv, err := cu.Open()
//	dev, err := drv.Device(0)
//	ctx, err := dev.PrimaryContext()
//	defer ctx.Close()
//
// # Rules
//
// Any goroutine may make any call at any time. Each call binds its context
// itself, so no caller locks a thread. It overwrites the thread's current CUDA
// context and leaves it so: do not mix with code that relies on cuCtxGetCurrent.
//
// The caller owns what New, Create, Alloc, Import, Load and OpenIPC return, and ends
// it with Close, which waits for the calls in flight. Close may be called twice,
// and on nil; any other use after Close is [ErrClosed]. A context's Close ends
// what was made in it.
//
// A call that returns before its work is done takes a [*Stream] and ends in Async.
// Launches, uploads, records, waits, written values and host functions always return
// before, and do without the word: [Function.Launch], [GraphExec.Upload],
// [Event.Record], [Stream.WaitEvent], [Stream.WaitValue32], [Stream.Call]. The form without Async
// takes a [*Context] and waits. The stream or context comes first, as receiver or
// first parameter; then destination, source and size. A nil *Stream is [ErrClosed].
//
// # Memory
//
// [Context.Alloc] allocates device memory, [Context.AllocHost] pinned host
// memory, and [Stream.AllocAsync] memory of a [Pool] in the order of a stream.
// [Device.CreateMemory] makes physical memory for [Driver.Map]; package vmm owns
// such memory properly. A [DevicePtr] is an address on the device.
//
// # Copies
//
// [CopyToDevice], [CopyToHost], [Copy], [CopyPeer], [Copy2D], [Copy3D], [Fill]
// and [Fill2D] queue their Async form in the null stream of a context and wait for
// it (cuStreamSynchronize). So they wait for earlier work of the null stream and of
// blocking streams, and not for that of [Context.NewStream]. Slices are of numbers,
// or of arrays and structs of numbers, as Go lays them out: see [ErrPointers].
//
// # Streams
//
// [Context.NewStream] makes a queue of work; [Context.NullStream] is the driver's
// own. [Stream.Synchronize], [Event.Synchronize] and [Context.Synchronize] wait
// for it. They poll with growing pauses, so that a wait that is given up leaves no
// thread behind; with a context that cannot end they wait in the driver.
// [Stream.Capture] records work as a [Graph], to be launched many times.
//
// # Kernels
//
// [Context.LoadModule] loads PTX or machine code, [Module.Function] finds a
// kernel, and [Function.Launch] runs it. [Function.Prepare] makes a [Launch] for
// many runs. A [Library] is code for all contexts. Package kernels has kernels.
//
// # Sharing
//
// Most programs want packages vmm and share, which stand on this one. Physical
// memory and pools are shared as file descriptors ([MemHandle.Export],
// [Pool.Export]), or between machines as a [FabricHandle]. Legacy IPC, which CuPy,
// PyTorch, Numba and UCX speak, shares other memory and events as 64 bytes:
// [Memory.IPCHandle], [Context.OpenIPC], [Event.IPCHandle],
// [Context.OpenIPCEvent]. A stream that waits for another process should have a
// deadline: [Event.Synchronize], [Stream.Guard].
//
// # Errors
//
// A refused call is an [*Error] that names the call; errors.Is matches it with
// its [Result], such as [ErrOutOfMemory]. A function that the driver is too old
// for is a [*SymbolError]. Work that fails later costs the process all its
// contexts, which then say [ErrContextLost]. GPUFD_TRACE=1 prints every driver
// call on standard error. D18 and the like are rows of docs/driver-facts.md.
//
// # Raw calls
//
// [Driver.Caller] and [Context.Caller] make calls that are not typed here. They
// take the driver's own handles, which the Handle methods return. Such a handle is
// valid until Close, and while the object that it came from is reachable.
//
// # Who should not use it
//
// Programs that want the runtime API, and programs whose CUDA C++ drives contexts
// of its own on the same threads.
package cu
