package soft

import (
	"sync"

	"github.com/gpufd/gpufd/cu/sys"
)

// A cStrings makes each C string once: callers keep the addresses for ever.
type cStrings struct {
	mu sync.Mutex
	of map[string]*byte
}

var errorStrings = cStrings{of: make(map[string]*byte)}

// get returns s as a C string.
func (c *cStrings) get(s string) *byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[s] == nil {
		c.of[s] = sys.CString(s)
	}
	return c.of[s]
}

// cuGetErrorName needs no cuInit. For a number that is not a result it stores a
// null pointer and returns CUDA_ERROR_INVALID_VALUE.
func (m *machine) cuGetErrorName(r sys.CUresult, out **byte) sys.CUresult {
	return errorText(r, out, r.String())
}

// cuGetErrorString is cuGetErrorName for a sentence.
func (m *machine) cuGetErrorString(r sys.CUresult, out **byte) sys.CUresult {
	return errorText(r, out, errorTexts[r])
}

func errorText(r sys.CUresult, out **byte, text string) sys.CUresult {
	if out == nil {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	if _, known := errorTexts[r]; !known {
		*out = nil
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	*out = errorStrings.get(text)
	return sys.CUDA_SUCCESS
}

// errorTexts says what each result means.
var errorTexts = map[sys.CUresult]string{
	sys.CUDA_SUCCESS:                              "no error",
	sys.CUDA_ERROR_INVALID_VALUE:                  "an argument is outside what the call accepts",
	sys.CUDA_ERROR_OUT_OF_MEMORY:                  "not enough memory",
	sys.CUDA_ERROR_NOT_INITIALIZED:                "cuInit has not been called or has failed",
	sys.CUDA_ERROR_DEINITIALIZED:                  "the driver is shutting down",
	sys.CUDA_ERROR_PROFILER_DISABLED:              "the profiler is not running",
	sys.CUDA_ERROR_PROFILER_NOT_INITIALIZED:       "the profiler was not set up",
	sys.CUDA_ERROR_PROFILER_ALREADY_STARTED:       "the profiler runs already",
	sys.CUDA_ERROR_PROFILER_ALREADY_STOPPED:       "the profiler is stopped already",
	sys.CUDA_ERROR_STUB_LIBRARY:                   "the loaded library is a stub for linking, not a driver",
	sys.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER:     "the call needs a newer driver",
	sys.CUDA_ERROR_DEVICE_UNAVAILABLE:             "the device is in use or not available now",
	sys.CUDA_ERROR_NO_DEVICE:                      "no device is visible",
	sys.CUDA_ERROR_INVALID_DEVICE:                 "no such device, or it cannot do this",
	sys.CUDA_ERROR_DEVICE_NOT_LICENSED:            "the device lacks a licence",
	sys.CUDA_ERROR_INVALID_IMAGE:                  "the module is not a valid image",
	sys.CUDA_ERROR_INVALID_CONTEXT:                "no valid context is current",
	sys.CUDA_ERROR_CONTEXT_ALREADY_CURRENT:        "the context is current already",
	sys.CUDA_ERROR_MAP_FAILED:                     "mapping failed",
	sys.CUDA_ERROR_UNMAP_FAILED:                   "unmapping failed",
	sys.CUDA_ERROR_ARRAY_IS_MAPPED:                "the array is mapped and cannot be destroyed",
	sys.CUDA_ERROR_ALREADY_MAPPED:                 "the resource is mapped already",
	sys.CUDA_ERROR_NO_BINARY_FOR_GPU:              "the module has no code for this device",
	sys.CUDA_ERROR_ALREADY_ACQUIRED:               "the resource is acquired already",
	sys.CUDA_ERROR_NOT_MAPPED:                     "the resource is not mapped",
	sys.CUDA_ERROR_NOT_MAPPED_AS_ARRAY:            "the resource is not mapped as an array",
	sys.CUDA_ERROR_NOT_MAPPED_AS_POINTER:          "the resource is not mapped as a pointer",
	sys.CUDA_ERROR_ECC_UNCORRECTABLE:              "a memory error could not be corrected",
	sys.CUDA_ERROR_UNSUPPORTED_LIMIT:              "the device does not have this limit",
	sys.CUDA_ERROR_CONTEXT_ALREADY_IN_USE:         "the context is bound to another thread",
	sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:        "the devices cannot access each other",
	sys.CUDA_ERROR_INVALID_PTX:                    "the PTX does not compile",
	sys.CUDA_ERROR_INVALID_GRAPHICS_CONTEXT:       "the graphics context is not valid",
	sys.CUDA_ERROR_NVLINK_UNCORRECTABLE:           "an NVLink error could not be corrected",
	sys.CUDA_ERROR_JIT_COMPILER_NOT_FOUND:         "the PTX compiler was not found",
	sys.CUDA_ERROR_UNSUPPORTED_PTX_VERSION:        "the PTX is newer than the driver",
	sys.CUDA_ERROR_JIT_COMPILATION_DISABLED:       "compiling PTX is switched off",
	sys.CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY:      "the device does not have this execution affinity",
	sys.CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC:       "the code synchronises on the device, which is not supported",
	sys.CUDA_ERROR_CONTAINED:                      "an error was contained to this process",
	sys.CUDA_ERROR_INVALID_SOURCE:                 "the kernel source is not valid",
	sys.CUDA_ERROR_FILE_NOT_FOUND:                 "the file was not found",
	sys.CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND: "a symbol of a shared object was not found",
	sys.CUDA_ERROR_SHARED_OBJECT_INIT_FAILED:      "a shared object could not be loaded",
	sys.CUDA_ERROR_OPERATING_SYSTEM:               "a call to the operating system failed",
	sys.CUDA_ERROR_INVALID_HANDLE:                 "the handle is not valid",
	sys.CUDA_ERROR_ILLEGAL_STATE:                  "the object is in the wrong state for this",
	sys.CUDA_ERROR_LOSSY_QUERY:                    "the answer would lose information",
	sys.CUDA_ERROR_NOT_FOUND:                      "it was not found",
	sys.CUDA_ERROR_NOT_READY:                      "earlier work is not finished",
	sys.CUDA_ERROR_ILLEGAL_ADDRESS:                "device code or a copy touched memory it may not touch",
	sys.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:        "the launch needs more than the device has",
	sys.CUDA_ERROR_LAUNCH_TIMEOUT:                 "the kernel ran too long",
	sys.CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING:  "the kernel uses an incompatible texturing mode",
	sys.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:    "peer access is enabled already",
	sys.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED:        "peer access is not enabled",
	sys.CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE:         "the primary context is active already",
	sys.CUDA_ERROR_CONTEXT_IS_DESTROYED:           "the context has been destroyed",
	sys.CUDA_ERROR_ASSERT:                         "an assertion failed in device code",
	sys.CUDA_ERROR_TOO_MANY_PEERS:                 "no more peers can be enabled",
	sys.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: "the host memory is registered already",
	sys.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:     "the host memory is not registered",
	sys.CUDA_ERROR_HARDWARE_STACK_ERROR:           "device code broke its stack",
	sys.CUDA_ERROR_ILLEGAL_INSTRUCTION:            "device code met an illegal instruction",
	sys.CUDA_ERROR_MISALIGNED_ADDRESS:             "device code used a misaligned address",
	sys.CUDA_ERROR_INVALID_ADDRESS_SPACE:          "device code used an address of the wrong space",
	sys.CUDA_ERROR_INVALID_PC:                     "device code jumped out of its program",
	sys.CUDA_ERROR_LAUNCH_FAILED:                  "device code failed",
	sys.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:   "the cooperative launch has too many blocks",
	sys.CUDA_ERROR_TENSOR_MEMORY_LEAK:             "a kernel left tensor memory allocated",
	sys.CUDA_ERROR_NOT_PERMITTED:                  "the operation is not permitted",
	sys.CUDA_ERROR_NOT_SUPPORTED:                  "the operation is not supported",
	sys.CUDA_ERROR_SYSTEM_NOT_READY:               "the system is not ready yet",
	sys.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:         "the versions of the parts of the driver do not match",
	sys.CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: "the device does not support compatibility mode",
	sys.CUDA_ERROR_MPS_CONNECTION_FAILED:          "the MPS server cannot be reached",
	sys.CUDA_ERROR_MPS_RPC_FAILURE:                "a call to the MPS server failed",
	sys.CUDA_ERROR_MPS_SERVER_NOT_READY:           "the MPS server is not ready",
	sys.CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:        "the MPS server has too many clients",
	sys.CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:    "the device has too many MPS connections",
	sys.CUDA_ERROR_MPS_CLIENT_TERMINATED:          "the MPS server ended this client",
	sys.CUDA_ERROR_CDP_NOT_SUPPORTED:              "kernels that launch kernels are not supported here",
	sys.CUDA_ERROR_CDP_VERSION_MISMATCH:           "the versions of kernels that launch kernels do not match",
	sys.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:     "the operation is not allowed while a stream is captured",
	sys.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:     "an earlier error spoilt the capture",
	sys.CUDA_ERROR_STREAM_CAPTURE_MERGE:           "the operation would merge two captures",
	sys.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:       "the capture did not begin on this stream",
	sys.CUDA_ERROR_STREAM_CAPTURE_UNJOINED:        "the capture has a branch that was not joined",
	sys.CUDA_ERROR_STREAM_CAPTURE_ISOLATION:       "the capture would depend on work outside it",
	sys.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:        "the capture would depend on the legacy default stream",
	sys.CUDA_ERROR_CAPTURED_EVENT:                 "the event was recorded in a capture",
	sys.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:    "the capture belongs to another thread",
	sys.CUDA_ERROR_TIMEOUT:                        "the wait timed out",
	sys.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE:      "the graph has changed too much to be updated",
	sys.CUDA_ERROR_EXTERNAL_DEVICE:                "a device outside the driver failed",
	sys.CUDA_ERROR_INVALID_CLUSTER_SIZE:           "the cluster is too large or not valid",
	sys.CUDA_ERROR_FUNCTION_NOT_LOADED:            "the function is not loaded",
	sys.CUDA_ERROR_INVALID_RESOURCE_TYPE:          "the resource has the wrong type",
	sys.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION: "the resource configuration is not valid",
	sys.CUDA_ERROR_KEY_ROTATION:                   "the device is changing its keys",
	sys.CUDA_ERROR_UNKNOWN:                        "unknown error",
}
