package cu

import "strings"

// A callResult is a driver function, without its version, and what it said. A
// result that means the same in all functions has none.
type callResult struct {
	op     string
	result Result
}

// hint says what to do, where that can be said of the result.
func (e *Error) hint() string {
	own := cudaHints
	if e.Kind == Soft {
		own = softHints
	}
	for _, op := range [...]string{strings.TrimSuffix(e.failed(), "_v2"), ""} {
		for _, hints := range [...]map[callResult]string{own, hints} {
			if h, ok := hints[callResult{op, e.Result}]; ok {
				return h
			}
		}
	}
	return ""
}

// hints say what to do about results whose cause lies outside the program, or
// whose name does not say it. These are true of both drivers.
var hints = map[callResult]string{
	{"", ErrUnsupportedLimit}:               "this device or driver does not have that limit",
	{"", ErrPeerAccessAlreadyEnabled}:       "some code of this process has enabled it before: go on, it works",
	{"", ErrTooManyPeers}:                   "a context can have access to so many peers only: disable it where it is not needed",
	{"", ErrHostMemoryAlreadyRegistered}:    "some code of this process has registered part of this memory before, or allocated it pinned",
	{"", ErrStreamCaptureUnsupported}:       "what is captured is not done, so before the capture has ended nothing can wait for the stream, ask how far it is, or allocate and free memory in it; and a graph in a graph is made with AddChild, not with a launch",
	{"", ErrStreamCaptureInvalidated}:       "an earlier call failed in a way that spoilt the capture: its error says why",
	{"", ErrStreamCaptureMerge}:             "a stream waited for an event of another capture: captures cannot be joined",
	{"", ErrStreamCaptureUnmatched}:         "a capture is ended on the stream that it began on",
	{"", ErrStreamCaptureUnjoined}:          "a stream that joined the capture has work that the first stream has not waited for: record an event after it and have the first stream wait for that",
	{"", ErrStreamCaptureIsolation}:         "a captured stream waited for an event that was recorded outside the capture: wait for it before the capture begins",
	{"", ErrStreamCaptureImplicit}:          "the null stream waits for the captured stream: capture one of NewStream, which it does not wait for, or do not use it meanwhile",
	{"", ErrCapturedEvent}:                  "the event was last recorded in a capture, so it never happens: it can only be waited for by streams in that capture",
	{"", ErrStreamCaptureWrongThread}:       "a capture that is not of the relaxed mode is ended on the thread that it began on",
	{"", ErrInvalidImage}:                   "it is neither PTX nor a cubin or fatbin, or not all of it",
	{"", ErrCooperativeLaunchTooLarge}:      "all blocks of a cooperative launch have to fit the device at once: see MaxActiveBlocks",
	{"", ErrGraphExecUpdateFailure}:         "the graph differs in more than parameters: instantiate it anew",
	{"cuMemAddressReserve", ErrOutOfMemory}: "this process has not that much address space left in one piece: close what is reserved and attached and no longer needed, and see ulimit -v",

	{"cuIpcOpenMemHandle", ErrInvalidContext}:   "the handle is of this very process, where the memory is used at its own address; or its owner has the same process number in another PID namespace, as the first process of each container has: start one of them behind an init process (docker run --init), or ask for a descriptor",
	{"cuIpcOpenMemHandle", ErrInvalidHandle}:    "the owner of the memory has ended; or another context of this process has memory of that owner open, and one context for each device may: open it there, or close what is open first",
	{"cuIpcOpenMemHandle", ErrInvalidValue}:     "these bytes are no handle that a process of this machine and driver has now: its owner has freed the memory, or they are damaged, or of another kind (an event's, a pool's)",
	{"cuIpcOpenMemHandle", ErrAlreadyMapped}:    "part of the memory is open in this process by another handle: close that first",
	{"cuIpcCloseMemHandle", ErrInvalidValue}:    "nothing of another process is open there: it was closed before, or is not the address that it was opened at",
	{"cuIpcGetEventHandle", ErrInvalidHandle}:   "the event was not made for other processes: that takes EventInterprocess and EventDisableTiming; or it is another process' own",
	{"cuIpcOpenEventHandle", ErrInvalidContext}: "the handle is of this very process, where the event itself is used",
}

// cudaHints are for libcuda.
var cudaHints = map[callResult]string{
	{"", ErrNoDevice}:                                   "no GPU is visible here: check nvidia-smi, CUDA_VISIBLE_DEVICES and the container's device options",
	{"", ErrOutOfMemory}:                                "the device has not that much memory free (nvidia-smi says who holds it), or its memory pool may not hold more",
	{"", ErrDeviceUnavailable}:                          "its compute mode forbids a context, or another process, of which it allows one, has it: see nvidia-smi -q -d COMPUTE",
	{"", ErrDeviceNotLicensed}:                          "the virtual GPU has no licence: see nvidia-smi -q for its state",
	{"", ErrPeerAccessUnsupported}:                      "these are one device, or two without a link that carries it: see nvidia-smi topo -p2p r",
	{"", ErrOperatingSystem}:                            "the operating system refused something: see dmesg and ulimit -a, and the permissions of what was to be opened, /dev/nvidia* among it",
	{"", ErrSystemNotReady}:                             "a part of the system has not been started: on machines with NVSwitch the service nvidia-fabricmanager has to run and nvidia-smi -q to show the fabric's state as completed",
	{"", ErrSystemDriverMismatch}:                       "libcuda and the kernel module are of different versions: reboot, or reload the nvidia module",
	{"", ErrCompatNotSupportedOnDevice}:                 "libcuda is of the compatibility package for a newer CUDA, which this GPU does not allow: take its directory out of LD_LIBRARY_PATH, or install that driver",
	{"", ErrStubLibrary}:                                "libcuda is the toolkit's stub for linking: take its directory out of LD_LIBRARY_PATH",
	{"", ErrCallRequiresNewerDriver}:                    "install a newer driver",
	{"", ErrMPSConnectionFailed}:                        "the MPS control daemon does not answer: start nvidia-cuda-mps-control, or unset CUDA_MPS_PIPE_DIRECTORY if none is meant",
	{"", ErrMPSRPCFailure}:                              "the MPS server failed: see its log in CUDA_MPS_LOG_DIRECTORY, and begin anew",
	{"", ErrMPSServerNotReady}:                          "the MPS server is starting or recovering from another client's failure: try again later",
	{"", ErrMPSMaxClientsReached}:                       "the MPS server has all the clients that it can have: end one",
	{"", ErrMPSMaxConnectionsReached}:                   "the device has all the MPS connections that it can have: end a client",
	{"", ErrMPSClientTerminated}:                        "the MPS server ended this process' work: begin anew",
	{"", ErrNoBinaryForGPU}:                             "the code is for other devices: compile it for this one's compute capability, or to PTX",
	{"", ErrUnsupportedPTXVersion}:                      "the PTX is of a newer CUDA than the driver: compile it with an older nvcc, lower its .version if it needs nothing newer, or install a newer driver",
	{"", ErrJITCompilerNotFound}:                        "libnvidia-ptxjitcompiler, which comes with the driver, cannot be loaded: install it, or mount it into the container",
	{"", ErrLaunchOutOfResources}:                       "its blocks need more registers than a multiprocessor has: launch smaller ones, or compile with fewer registers",
	{"cuInit", ErrUnknown}:                              "often the kernel module nvidia-uvm is not loaded (nvidia-modprobe -u loads it) or /dev/nvidia-uvm cannot be opened; dmesg may say more",
	{"cuMemCreate", ErrNotSupported}:                    "for virtual memory the GPU needs compute capability 6.0 or newer and the driver CUDA 10.2 or newer (11.4 for this library)",
	{"cuMemCreate", ErrNotPermitted}:                    cudaFabricHint,
	{"cuIpcGetMemHandle", ErrNotSupported}:              cudaIPCHint,
	{"cuIpcOpenMemHandle", ErrNotSupported}:             cudaIPCHint,
	{"cuIpcGetEventHandle", ErrNotSupported}:            cudaIPCHint,
	{"cuIpcOpenEventHandle", ErrNotSupported}:           cudaIPCHint,
	{"cuIpcOpenMemHandle", ErrMapFailed}:                "the memory is there and cannot be mapped into this process: see that its addresses are not limited (ulimit -v), and that no container hides it; between those ask for a descriptor. Memory that is freed and owners that have ended give other errors",
	{"cuIpcOpenMemHandle", ErrPeerAccessUnsupported}:    "the memory is on another device, which this one cannot reach: see nvidia-smi topo -p2p r, or open it in a context of that device",
	{"cuIpcOpenEventHandle", ErrMapFailed}:              "these bytes are no handle of an event, or its process is in a container whose /dev/shm is another, between which events cannot be shared: use a counter in shared memory (share.Counter)",
	{"cuMemImportFromShareableHandle", ErrNotPermitted}: cudaFabricHint,
	{"cuMemImportFromShareableHandle", ErrNotSupported}: "a fabric handle takes an IMEX channel (nvidia-modprobe, nvidia-imex) and devices of one NVLink domain on both sides",
	{"cuMemExportToShareableHandle", ErrNotPermitted}:   cudaFabricHint,
}

const (
	cudaIPCHint    = "this device or system has no legacy IPC (see Device.SupportsIPC): share memory of package vmm as descriptors"
	cudaFabricHint = "not allowed here: a fabric handle wants an IMEX channel, which an administrator makes (nvidia-modprobe, nvidia-imex)"
)

// softHints are for the software driver, in the place of what is said of libcuda.
var softHints = map[callResult]string{
	{"", ErrNoDevice}:                                   "the software driver shows no device: GPUFD_SOFT_DEVICES is 0, or CUDA_VISIBLE_DEVICES names none of its devices",
	{"", ErrOutOfMemory}:                                "the device has not that much memory free (it has GPUFD_SOFT_MEMORY, and the files in GPUFD_SOFT_DIR are what is in use), or its memory pool may not hold more",
	{"", ErrPeerAccessUnsupported}:                      "these are one device, or GPUFD_SOFT_PEERS=0 keeps the devices apart",
	{"", ErrOperatingSystem}:                            "the operating system refused something: see ulimit -a, and the free space and permissions of GPUFD_SOFT_DIR and of what was to be opened",
	{"", ErrNoBinaryForGPU}:                             "the software driver runs PTX only: compile it to that (nvcc -ptx)",
	{"", ErrUnsupportedPTXVersion}:                      "the PTX is of a newer CUDA than the software driver: compile it with an older nvcc, lower its .version if it needs nothing newer, or see GPUFD_SOFT_VERSION",
	{"cuMemCreate", ErrNotSupported}:                    "the software driver has no memory of this kind: none of the host, and with GPUFD_SOFT_VMM=0 none at all",
	{"cuMemCreate", ErrNotPermitted}:                    softFabricHint,
	{"cuIpcGetMemHandle", ErrNotSupported}:              softIPCHint,
	{"cuIpcOpenMemHandle", ErrNotSupported}:             softIPCHint,
	{"cuIpcGetEventHandle", ErrNotSupported}:            softIPCHint,
	{"cuIpcOpenEventHandle", ErrNotSupported}:           softIPCHint,
	{"cuIpcOpenMemHandle", ErrMapFailed}:                "the memory is in another GPUFD_SOFT_DIR, as each user has, or its file cannot be opened: ask for a descriptor. Memory that is freed and owners that have ended give other errors",
	{"cuIpcOpenMemHandle", ErrPeerAccessUnsupported}:    "the memory is on another device, and GPUFD_SOFT_PEERS=0 keeps the devices apart: open it in a context of that device",
	{"cuIpcOpenEventHandle", ErrMapFailed}:              "these bytes are no handle of an event, or its process has another GPUFD_SOFT_DIR or /dev/shm, between which events cannot be shared: use a counter in shared memory (share.Counter)",
	{"cuMemImportFromShareableHandle", ErrNotPermitted}: softFabricHint,
	{"cuMemImportFromShareableHandle", ErrNotSupported}: softFabricHint,
	{"cuMemExportToShareableHandle", ErrNotPermitted}:   softFabricHint,
}

const (
	softIPCHint    = "GPUFD_SOFT_IPC=0 takes legacy IPC away: share memory of package vmm as descriptors"
	softFabricHint = "a fabric handle wants an IMEX channel, which the software driver has with GPUFD_SOFT_IMEX=1, on both sides"
)
