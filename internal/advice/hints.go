// Package advice says what to do about the results of driver calls, and what causes them
// where memory is shared. The errors of package cu and gpufd doctor both take it from here.
package advice

import (
	"strings"

	"github.com/gpufd/gpufd/cu/sys"
)

// A Call is a driver function, without its version, and its result. A result that means
// the same in all functions has no function.
type Call struct {
	Op     string
	Result sys.CUresult
}

// For says what to do about a result of that function, in any version, or returns "" if
// there is nothing to say. soft is for the software driver.
func For(op string, r sys.CUresult, soft bool) string {
	own := onlyCUDA
	if soft {
		own = onlySoft
	}
	for _, op := range [...]string{trimVersion(op), ""} {
		for _, texts := range [...]map[Call]string{own, both} {
			if text, ok := texts[Call{op, r}]; ok {
				return text
			}
		}
	}
	return ""
}

// trimVersion returns a function without its version.
func trimVersion(op string) string { return strings.TrimSuffix(op, "_v2") }

// both say what to do about results whose cause lies outside the program, or
// whose name does not say it. These are true of both drivers.
var both = map[Call]string{
	{"", sys.CUDA_ERROR_UNSUPPORTED_LIMIT}:                "this device or driver does not have that limit",
	{"", sys.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED}:      "other code of this process has enabled it: go on, it works",
	{"", sys.CUDA_ERROR_TOO_MANY_PEERS}:                   "a context has access to the most peers that it can have: disable one that is not needed",
	{"", sys.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED}:   "other code of this process has registered part of this memory, or allocated it pinned",
	{"", sys.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED}:       "captured work does not run, so until the capture ends nothing can wait for the stream, query it, or allocate and free memory in it; to put a graph into a graph use AddChild, not a launch",
	{"", sys.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED}:       "an earlier call failed in a way that spoilt the capture: its error says why",
	{"", sys.CUDA_ERROR_STREAM_CAPTURE_MERGE}:             "a stream waited for an event of another capture: captures cannot be joined",
	{"", sys.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED}:         "end the capture on the stream that it began on",
	{"", sys.CUDA_ERROR_STREAM_CAPTURE_UNJOINED}:          "a stream that joined the capture has work that the first stream has not waited for: record an event after it and make the first stream wait for that",
	{"", sys.CUDA_ERROR_STREAM_CAPTURE_ISOLATION}:         "a captured stream waited for an event that was recorded outside the capture: wait for it before the capture begins",
	{"", sys.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT}:          "the null stream waits for the captured stream: capture a stream of NewStream, which it does not wait for, or do not use it meanwhile",
	{"", sys.CUDA_ERROR_CAPTURED_EVENT}:                   "the event was last recorded in a capture, so it never happens: only streams in that capture can wait for it",
	{"", sys.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD}:      "unless its mode is relaxed, end a capture on the thread that it began on",
	{"", sys.CUDA_ERROR_INVALID_IMAGE}:                    "it is not PTX, a cubin or a fatbin, or it is not complete",
	{"", sys.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE}:     "all blocks of a cooperative launch have to fit the device at once: see MaxActiveBlocks",
	{"", sys.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE}:        "the graph differs in more than parameters: instantiate it again",
	{"cuMemAddressReserve", sys.CUDA_ERROR_OUT_OF_MEMORY}: "this process does not have that much address space left in one piece: close reservations and attachments that are not needed, and see ulimit -v",

	{"cuImportExternalMemory", sys.CUDA_ERROR_UNKNOWN}:        "the descriptor is not of memory that can be imported: Vulkan has to export it as VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT, on this device",
	{"cuImportExternalMemory", sys.CUDA_ERROR_INVALID_DEVICE}: "the memory is on another device: import it in a context of that one (Driver.DeviceByUUID with Vulkan's deviceUUID)",
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_INVALID_CONTEXT}:    "the handle is of this very process: use the memory at its own address; or its owner has the same process number in another PID namespace: ask for a descriptor",
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_INVALID_HANDLE}:     "the owner of the memory has ended; or another context of this process has memory of that owner open, and only one per device may: open it there, or first close what is open",
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_INVALID_VALUE}:      "these bytes are not a handle of a process of this machine and driver: its owner has freed the memory, or they are damaged, or of another kind (an event's, a pool's)",
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_ALREADY_MAPPED}:     "part of the memory is open in this process by another handle: close that first",
	{"cuIpcCloseMemHandle", sys.CUDA_ERROR_INVALID_VALUE}:     "no memory of another process is open there: it was closed before, or this is not the address that it was opened at",
	{"cuIpcGetEventHandle", sys.CUDA_ERROR_INVALID_HANDLE}:    "the event was not made for other processes, with EventInterprocess and EventDisableTiming; or it belongs to another process",
	{"cuIpcOpenEventHandle", sys.CUDA_ERROR_INVALID_CONTEXT}:  "the handle is of this very process: use the event itself",
}

// onlyCUDA is for libcuda.
var onlyCUDA = map[Call]string{
	{"", sys.CUDA_ERROR_NO_DEVICE}:                                   "no GPU is visible here: check nvidia-smi, CUDA_VISIBLE_DEVICES and the devices in /dev",
	{"", sys.CUDA_ERROR_OUT_OF_MEMORY}:                               "the device does not have that much memory free (nvidia-smi says who holds it), or its memory pool may not hold more",
	{"", sys.CUDA_ERROR_DEVICE_UNAVAILABLE}:                          "its compute mode forbids contexts, or allows one process and another has it: see nvidia-smi -q -d COMPUTE",
	{"", sys.CUDA_ERROR_DEVICE_NOT_LICENSED}:                         "the virtual GPU has no licence: see nvidia-smi -q for its state",
	{"", sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED}:                     "these are one device, or no link between the two carries it: see nvidia-smi topo -p2p r",
	{"", sys.CUDA_ERROR_OPERATING_SYSTEM}:                            "the operating system refused something: see dmesg and ulimit -a, and the permissions of what was opened, including /dev/nvidia*",
	{"", sys.CUDA_ERROR_SYSTEM_NOT_READY}:                            "a part of the system has not started: on machines with NVSwitch start the service nvidia-fabricmanager, and wait until nvidia-smi -q shows the fabric's state as completed",
	{"", sys.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH}:                      "libcuda and the kernel module are of different versions: reboot, or reload the nvidia module",
	{"", sys.CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE}:              "libcuda is of the compatibility package for a newer CUDA, which this GPU does not allow: take its directory out of LD_LIBRARY_PATH, or install that driver",
	{"", sys.CUDA_ERROR_STUB_LIBRARY}:                                "libcuda is the toolkit's stub for linking: take its directory out of LD_LIBRARY_PATH",
	{"", sys.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER}:                  "install a newer driver",
	{"", sys.CUDA_ERROR_MPS_CONNECTION_FAILED}:                       "the MPS control daemon does not answer: start nvidia-cuda-mps-control, or unset CUDA_MPS_PIPE_DIRECTORY to do without MPS",
	{"", sys.CUDA_ERROR_MPS_RPC_FAILURE}:                             "the MPS server failed: see its log in CUDA_MPS_LOG_DIRECTORY, and restart the process",
	{"", sys.CUDA_ERROR_MPS_SERVER_NOT_READY}:                        "the MPS server is starting or recovering from another client's failure: try again later",
	{"", sys.CUDA_ERROR_MPS_MAX_CLIENTS_REACHED}:                     "the MPS server has the most clients that it can have: end one",
	{"", sys.CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED}:                 "the device has the most MPS connections that it can have: end a client",
	{"", sys.CUDA_ERROR_MPS_CLIENT_TERMINATED}:                       "the MPS server ended this process's work: restart the process",
	{"", sys.CUDA_ERROR_NO_BINARY_FOR_GPU}:                           "the code is for other devices: compile it for this one's compute capability, or to PTX",
	{"", sys.CUDA_ERROR_UNSUPPORTED_PTX_VERSION}:                     "the PTX is for a newer CUDA than the driver: compile it with an older nvcc, lower its .version if it needs nothing newer, or install a newer driver",
	{"", sys.CUDA_ERROR_JIT_COMPILER_NOT_FOUND}:                      "libnvidia-ptxjitcompiler, which comes with the driver, cannot be loaded: install it",
	{"", sys.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES}:                     "its blocks need more registers than a multiprocessor has: launch smaller blocks, or compile with fewer registers",
	{"cuInit", sys.CUDA_ERROR_UNKNOWN}:                               "often the kernel module nvidia-uvm is not loaded (nvidia-modprobe -u loads it) or /dev/nvidia-uvm cannot be opened; dmesg may say more",
	{"cuMemCreate", sys.CUDA_ERROR_NOT_SUPPORTED}:                    "for virtual memory the GPU needs compute capability 6.0 or newer and the driver CUDA 10.2 or newer (11.4 for this library)",
	{"cuMemCreate", sys.CUDA_ERROR_NOT_PERMITTED}:                    cudaFabricHint,
	{"cuIpcGetMemHandle", sys.CUDA_ERROR_NOT_SUPPORTED}:              cudaIPCHint,
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_NOT_SUPPORTED}:             cudaIPCHint,
	{"cuIpcGetEventHandle", sys.CUDA_ERROR_NOT_SUPPORTED}:            cudaIPCHint,
	{"cuIpcOpenEventHandle", sys.CUDA_ERROR_NOT_SUPPORTED}:           cudaIPCHint,
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_MAP_FAILED}:                "the memory is there but cannot be mapped into this process: check that its addresses are not limited (ulimit -v), or ask for a descriptor (freed memory and owners that have ended give other errors)",
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED}:   "the memory is on another device, which this one cannot reach: see nvidia-smi topo -p2p r, or open it in a context of that device",
	{"cuIpcOpenEventHandle", sys.CUDA_ERROR_MAP_FAILED}:              "these bytes are not a handle of an event, or its process has another /dev/shm, and cannot share events with this one: wait for a word in shared memory (Stream.WaitValue64)",
	{"cuMemImportFromShareableHandle", sys.CUDA_ERROR_NOT_PERMITTED}: cudaFabricHint,
	{"cuMemImportFromShareableHandle", sys.CUDA_ERROR_NOT_SUPPORTED}: "a fabric handle needs an IMEX channel (nvidia-modprobe, nvidia-imex) and devices of one NVLink domain on both sides",
	{"cuMemExportToShareableHandle", sys.CUDA_ERROR_NOT_PERMITTED}:   cudaFabricHint,
}

const (
	cudaIPCHint    = "this device or system has no legacy IPC (see Device.SupportsIPC): share memory of package vmm as descriptors"
	cudaFabricHint = "not allowed here: a fabric handle needs an IMEX channel; ask an administrator to make one (nvidia-modprobe, nvidia-imex)"
)

// onlySoft is for the software driver, where onlyCUDA is for libcuda.
var onlySoft = map[Call]string{
	{"", sys.CUDA_ERROR_NO_DEVICE}:                                   "the software driver shows no device: GPUFD_SOFT_DEVICES is 0, or CUDA_VISIBLE_DEVICES names none of its devices",
	{"", sys.CUDA_ERROR_OUT_OF_MEMORY}:                               "the device does not have that much memory free (it has GPUFD_SOFT_MEMORY; the files in GPUFD_SOFT_DIR are in use), or its memory pool may not hold more",
	{"", sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED}:                     "these are one device, or GPUFD_SOFT_PEERS=0 keeps the devices apart",
	{"", sys.CUDA_ERROR_OPERATING_SYSTEM}:                            "the operating system refused something: see ulimit -a, and the free space and permissions of GPUFD_SOFT_DIR and of what was opened",
	{"", sys.CUDA_ERROR_NO_BINARY_FOR_GPU}:                           "the software driver runs PTX only: compile it to that (nvcc -ptx)",
	{"", sys.CUDA_ERROR_UNSUPPORTED_PTX_VERSION}:                     "the PTX is for a newer CUDA than the software driver: compile it with an older nvcc, lower its .version if it needs nothing newer, or see GPUFD_SOFT_VERSION",
	{"cuMemCreate", sys.CUDA_ERROR_NOT_SUPPORTED}:                    "the software driver has no memory of this kind: none on the host, and with GPUFD_SOFT_VMM=0 none at all",
	{"cuMemCreate", sys.CUDA_ERROR_NOT_PERMITTED}:                    softFabricHint,
	{"cuIpcGetMemHandle", sys.CUDA_ERROR_NOT_SUPPORTED}:              softIPCHint,
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_NOT_SUPPORTED}:             softIPCHint,
	{"cuIpcGetEventHandle", sys.CUDA_ERROR_NOT_SUPPORTED}:            softIPCHint,
	{"cuIpcOpenEventHandle", sys.CUDA_ERROR_NOT_SUPPORTED}:           softIPCHint,
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_MAP_FAILED}:                "the memory is in another GPUFD_SOFT_DIR, as each user has one, or its file cannot be opened: ask for a descriptor (freed memory and owners that have ended give other errors)",
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED}:   "the memory is on another device, and GPUFD_SOFT_PEERS=0 keeps the devices apart: open it in a context of that device",
	{"cuIpcOpenEventHandle", sys.CUDA_ERROR_MAP_FAILED}:              "these bytes are not a handle of an event, or its process has another GPUFD_SOFT_DIR or /dev/shm, and cannot share events with this one: wait for a word in shared memory (Stream.WaitValue64)",
	{"cuMemImportFromShareableHandle", sys.CUDA_ERROR_NOT_PERMITTED}: softFabricHint,
	{"cuMemImportFromShareableHandle", sys.CUDA_ERROR_NOT_SUPPORTED}: softFabricHint,
	{"cuMemExportToShareableHandle", sys.CUDA_ERROR_NOT_PERMITTED}:   softFabricHint,
}

const (
	softIPCHint    = "GPUFD_SOFT_IPC=0 takes legacy IPC away: share memory of package vmm as descriptors"
	softFabricHint = "a fabric handle needs an IMEX channel: set GPUFD_SOFT_IMEX=1 for the software driver, on both sides"
)
