// Package soft is a software driver: a stand-in for libcuda on machines
// without a GPU. [Resolver] hands out C function pointers under libcuda's
// symbols, so that its callers cross the same C ABI with the same arguments
// and get the same errors. Device memory is shared between processes as file
// descriptors, really, and a descriptor alone keeps it alive, as on hardware.
//
// It is for tests, for CI and for trying programs out. It is not an emulator
// of a particular GPU, and not fast: a small copy costs microseconds, and
// memory is the host's. Whoever has a GPU does not want it. Programs that use
// it say so.
//
// # The environment
//
// It is read once per process, when the first symbol is resolved.
//
//	GPUFD_SOFT_DEVICES    number of devices, 0 to 64; default 2
//	GPUFD_SOFT_MEMORY     memory of each: bytes, or with KiB, MiB, GiB; default 2GiB
//	GPUFD_SOFT_VERSION    CUDA version to be, 12040 for 12.4; default 13000.
//	                      Symbols newer than that do not resolve.
//	GPUFD_SOFT_PEERS      0: no device reaches the memory of another; default 1
//	GPUFD_SOFT_IPC        0: no legacy IPC; default 1
//	GPUFD_SOFT_VMM        0: no virtual memory management; default 1
//	GPUFD_SOFT_IMEX       1: fabric handles, as with an IMEX channel; default 0
//	GPUFD_SOFT_DIR        directory of device memory, 0700 and ours, made if
//	                      missing; default gpufd-soft-UID in /dev/shm, or in
//	                      the temporary directory where /dev/shm could not hold
//	                      one device's memory, so that processes that share
//	                      memory want the same GPUFD_SOFT_MEMORY
//	CUDA_VISIBLE_DEVICES  as for libcuda: indices or GPU-… UUIDs or prefixes
//
// Where that makes no sense, cu.Open says so with a [*ConfigError]: cuInit does not
// resolve. Processes see each other's memory if they use the same directory; the
// devices' UUIDs are the directory's, made of its file machine. Another user, who may
// not use it, shares memory from a directory of its own with a copy of that file: as
// descriptors, not by legacy handles and events, whose files stay in their owner's
// directory (CUDA_ERROR_MAP_FAILED).
//
// # How it behaves
//
// As docs/driver-facts.md found the real driver to behave, error for error; comments name
// its rows (D1…). Where the real one crashes or accepts what is wrong (D4),
// this one returns an error and remembers it for [Misuses].
//
// Each piece of device memory is a file, mapped once in every process that
// uses it. A device address is in a reservation that the host cannot touch; a
// copy looks it up in a table of mappings and rights. The lock on a file's
// open description, which travels with its descriptors and mappings, tells
// every process whether anybody still uses the memory; what a killed process
// left is removed by whoever needs the room next, at the latest by the next
// cuInit. Do not remove the directory while it is in use.
//
// Streams are asynchronous and a missing synchronisation shows. Copies on
// streams run later, except where CUDA makes them synchronous; from pageable
// memory the bytes are copied out first. A failure of asynchronous work, such
// as memory that was unmapped in between or a file that somebody cut short,
// poisons every context of the process, as on hardware. A stream that waits for
// a value looks again and again, at least every millisecond; that is how it sees
// what other processes write. The first ABI of these waits works before CUDA
// 11.7 only, as if the kernel module had been told to let it.
//
// Modules are PTX, run on the CPU by package ptx: an instruction that it does
// not know is an error of the load, in the log, by name and line. Machine code
// in cubins and fatbins is for no device here. [LastFault] says where a kernel, a copy
// or a stream's wait died, and what was at the address, which results of the driver
// do not. Of a launch's blocks only as many are under way at once as take a little
// above 1 GiB of the host's memory, with their threads' registers and local memory; a
// cooperative launch has to fit into that.
//
// # What bites
//
// The calling thread's context is kept by thread number; callers that do not
// set the context in the same crossing (see package sys) must lock the
// goroutine to its thread. Arguments that point to memory must point to the
// heap: these C functions are Go inside, and a stack can move. Callbacks
// cannot be freed, and a process has 2,000 of them; each symbol uses one when
// it is first resolved, those that are not implemented share one.
//
// # Debugging
//
// GPUFD_TRACE=1 in package cu prints every call. ls in the directory shows the
// memory there is: gpuORDINAL-BYTES-ID.mem, of a memory pool that can be shared
// gpuORDINAL-BYTES-ID-POOL.mem, and pool-POOL for the pool itself; ipc-ID says that memory of
// cuIpcGetMemHandle is still its owner's, or that such an owner lives, and event-ID is an event
// for other processes; lsof or fuser shows who holds it.
// [Implemented] and [NotImplemented] list the symbols; the latter return
// CUDA_ERROR_NOT_SUPPORTED. Arrays and managed memory are not there yet.
package soft
