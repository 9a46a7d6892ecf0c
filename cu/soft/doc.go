// Package soft is a software driver: a stand-in for libcuda on machines
// without a GPU. [Resolver] hands out C function pointers under libcuda's
// symbols, so that its callers cross the same C ABI with the same arguments
// and get the same errors. Processes really share device memory, as file
// descriptors, and a descriptor alone keeps it alive, as on hardware.
//
// It is for tests, for CI and for trying programs out. It is not an emulator
// of a particular GPU, and not fast: a small copy costs microseconds, and
// memory is the host's. With a GPU you do not want it. Programs that use it
// say so.
//
// # The environment
//
// The driver reads it once per process, when the first symbol is resolved.
//
//	GPUFD_SOFT_DEVICES    number of devices, 0 to 64; default 2
//	GPUFD_SOFT_MEMORY     memory of each, and of the host's NUMA node: bytes, or with
//	                      KiB, MiB, GiB; default 2GiB
//	GPUFD_SOFT_VERSION    CUDA version to imitate, 12040 for 12.4; default 13000.
//	                      Symbols newer than that do not resolve.
//	GPUFD_SOFT_PEERS      0: no device reaches the memory of another; default 1
//	GPUFD_SOFT_IPC        0: no legacy IPC; default 1
//	GPUFD_SOFT_VMM        0: no virtual memory management; default 1
//	GPUFD_SOFT_IMEX       1: fabric handles, as with an IMEX channel; default 0
//	GPUFD_SOFT_DIR        directory of device memory, 0700 and ours, made if
//	                      missing; default gpufd-soft-UID in /dev/shm, or in
//	                      the temporary directory where /dev/shm could not hold
//	                      one device's memory; so processes that share memory
//	                      need the same GPUFD_SOFT_MEMORY
//	CUDA_VISIBLE_DEVICES  as for libcuda: indices or GPU-… UUIDs or prefixes
//
// If the environment makes no sense, cuInit does not resolve, and cu.Open returns a
// [*ConfigError]. Processes see each other's memory if they use the same directory; its
// file machine determines the UUIDs of the devices. Another user may not use it, but can
// share memory from a directory of its own with a copy of that file: as descriptors, not
// by legacy handles and events, whose files stay in their owner's directory
// (CUDA_ERROR_MAP_FAILED).
//
// # How it behaves
//
// It behaves like the real driver in docs/driver-facts.md, error for error; comments
// name its rows (D1…). Where the real one crashes or accepts a mistake (D4), this one
// returns an error and remembers it for [Misuses].
//
// Each piece of device memory is a file, mapped once in every process that
// uses it. A device address is in a reservation that the host cannot touch, unless
// it is memory of the host that it has access to; a copy looks it up in a table of mappings and rights. The lock on a file's
// open description, which travels with its descriptors and mappings, tells
// every process whether anybody still uses the memory. The next process that
// needs the room, or calls cuInit, removes what a killed process left. A process
// locks the directory while it makes memory, frees memory that nobody else has, asks
// how much is free, calls cuInit, or uses pools that can be shared, legacy IPC or
// fabric handles. If it is stopped at that moment (SIGSTOP), others that need the lock
// wait until it goes on. Do not remove the directory while it is in use.
//
// Streams are asynchronous, and a missing synchronisation shows. Copies on
// streams run later, except where CUDA makes them synchronous; bytes of pageable
// memory are copied out first. Memory that is unmapped under a kernel, a copy or a
// fill, or freed by another context, is a failure at the next access (C40, C41). A
// failure of asynchronous work, such as that or a file that somebody cut short,
// poisons every context of the process, as on hardware. A stream that waits for
// a value polls, at least every millisecond, and so sees what other processes
// write. The first ABI of these waits works only before CUDA 11.7, as if the
// kernel module had been told to allow it.
//
// Modules are PTX, and package ptx runs them on the CPU. An instruction that it
// does not know fails the load; the log has its name and line. Machine code in cubins
// and fatbins is for no device here. [LastFault] says where a kernel, a copy or a
// stream's wait died, and what was at the address; results of the driver do not. The
// blocks of a launch that run at once take a little above 1 GiB of the host's memory
// at most, with their threads' registers and local memory; a cooperative launch has to
// fit into that.
//
// # What bites
//
// The driver keeps the calling thread's context by thread number; callers that
// do not set the context in the same crossing (see package sys) must lock the
// goroutine to its thread. Arguments that point to memory must point to the
// heap: these C functions are Go inside, and a stack can move. Callbacks
// cannot be freed, and a process has 2,000 of them; each symbol uses one when
// it is first resolved. Symbols that are not implemented share one.
//
// # Debugging
//
// GPUFD_TRACE=1 in package cu prints every call. ls in the directory lists what is
// there; lsof or fuser shows who holds it:
//
//	gpuORDINAL-BYTES-ID.mem       memory; 64 is the host
//	gpuORDINAL-BYTES-ID-POOL.mem  memory of a pool that can be shared
//	pool-POOL                     that pool
//	ipc-ID                        memory of cuIpcGetMemHandle whose owner has it, or a live owner
//	event-ID                      an event for other processes
//
// [Implemented] lists the symbols that do something; the others return
// CUDA_ERROR_NOT_SUPPORTED. Arrays and managed memory are not there yet.
package soft
