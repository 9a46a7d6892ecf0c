package doctor

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/sys"
)

// resultIn returns the result of the driver that a text names: by name, by the driver's words
// for it, or by number; or 0. A line of a log has many numbers and words that are no result:
// trusted says that words which others use, too, may be the driver's.
func resultIn(text string, trusted bool) sys.CUresult {
	text = strings.TrimSpace(text)
	if n, err := strconv.Atoi(text); err == nil {
		return known(n)
	}
	for _, m := range namePattern.FindAllStringSubmatch(text, -1) {
		if r, ok := names()[plainName(m[1])]; ok {
			return r
		}
	}
	if wholeName.MatchString(text) {
		if r, ok := names()[plainName(text)]; ok {
			return r
		}
	}
	if r := saidIn(text, trusted); r != 0 {
		return r
	}
	return numberIn(text)
}

var (
	namePattern = regexp.MustCompile(`(?i)\b(?:CUDA_ERROR_|cudaError_?)(\w+)`)
	wholeName   = regexp.MustCompile(`^[A-Za-z_]+$`)
)

// names are the results by their names without CUDA_ERROR_, and by the runtime API's names
// where those differ.
var names = sync.OnceValue(func() map[string]sys.CUresult {
	all := map[string]sys.CUresult{
		"MEMORYALLOCATION": sys.CUDA_ERROR_OUT_OF_MEMORY, "INITIALIZATIONERROR": sys.CUDA_ERROR_NOT_INITIALIZED,
		"CUDARTUNLOADING": sys.CUDA_ERROR_DEINITIALIZED, "DEVICESUNAVAILABLE": sys.CUDA_ERROR_DEVICE_UNAVAILABLE,
		"INVALIDKERNELIMAGE": sys.CUDA_ERROR_INVALID_IMAGE, "DEVICEUNINITIALIZED": sys.CUDA_ERROR_INVALID_CONTEXT,
		"MAPBUFFEROBJECTFAILED": sys.CUDA_ERROR_MAP_FAILED, "UNMAPBUFFEROBJECTFAILED": sys.CUDA_ERROR_UNMAP_FAILED,
		"NOKERNELIMAGEFORDEVICE": sys.CUDA_ERROR_NO_BINARY_FOR_GPU, "DEVICEALREADYINUSE": sys.CUDA_ERROR_CONTEXT_ALREADY_IN_USE,
		"INVALIDRESOURCEHANDLE": sys.CUDA_ERROR_INVALID_HANDLE, "SYMBOLNOTFOUND": sys.CUDA_ERROR_NOT_FOUND,
		"SETONACTIVEPROCESS": sys.CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "LAUNCHFAILURE": sys.CUDA_ERROR_LAUNCH_FAILED,
	}
	for r := range words {
		all[plainName(strings.TrimPrefix(r.String(), "CUDA_ERROR_"))] = r
	}
	return all
})

func plainName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "_", "")) }

// known returns the result of that number, or 0.
func known(n int) sys.CUresult {
	if _, ok := words[sys.CUresult(n)]; ok {
		return sys.CUresult(n)
	}
	return 0
}

// A phrase is what somebody says of a result.
type phrase struct {
	words  string
	result sys.CUresult
}

// phrases are the driver's words in lower case, and parts of them that logs have, the longest
// first: "operation not supported" is in the words of three results.
var phrases = sync.OnceValue(func() []phrase {
	all := []phrase{
		{"devices are busy or unavailable", sys.CUDA_ERROR_DEVICE_UNAVAILABLE},
		{"is/are busy or unavailable", sys.CUDA_ERROR_DEVICE_UNAVAILABLE},
		{"unsupported display driver", sys.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH},
		{"no cuda-capable device", sys.CUDA_ERROR_NO_DEVICE},
		{"peer access is not supported", sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED},
		{"illegal memory access", sys.CUDA_ERROR_ILLEGAL_ADDRESS},
	}
	for r, w := range words {
		all = append(all, phrase{strings.ToLower(w), r})
	}
	slices.SortFunc(all, func(a, b phrase) int {
		return cmp.Or(len(b.words)-len(a.words), cmp.Compare(a.result, b.result))
	})
	return all
})

// everyday are words of the driver that the system and other programs use, too.
var everyday = []string{
	"invalid argument", "out of memory", "operation not permitted", "operation not supported", "unknown error",
	"file not found", "initialization error", "device not ready", "context is destroyed", "invalid program counter", "misaligned address",
}

// saidIn returns the result of the longest words of the driver in a text, or 0.
func saidIn(text string, trusted bool) sys.CUresult {
	lower := strings.ToLower(text)
	for _, p := range phrases() {
		at := strings.Index(lower, p.words)
		if at < 0 {
			continue
		}
		if lower == p.words || !slices.Contains(everyday, p.words) {
			return p.result
		}
		quoted := strings.Contains(lower, "'"+p.words+"'") // as CUDA's programs print them
		if ofCUDA(text) && (trusted || quoted) && !errnoWord.MatchString(text) && !hasErrno(lower[at:], p.words) {
			return p.result
		}
	}
	return 0
}

var (
	ofCUDAPattern = regexp.MustCompile(`(?i:cuda|custom_all_reduce|\.cuh?\b)|\b(?:cu[A-Z]|CUresult)`)
	errnoWord     = regexp.MustCompile(`(?i)\b(?:errno|os error)\W{0,3}(\d{1,3})\b`)
	behindWords   = regexp.MustCompile(`^\W{1,4}(\d{1,3})\)`)
)

// ofCUDA reports whether a text speaks of CUDA.
func ofCUDA(text string) bool { return ofCUDAPattern.MatchString(text) || len(callsIn(text)) > 0 }

// hasErrno reports whether the system's number of its error with those words stands behind them,
// as in "Operation not permitted (1)".
func hasErrno(text, words string) bool {
	m := behindWords.FindStringSubmatch(strings.TrimPrefix(text, words))
	if m == nil {
		return false
	}
	n, _ := strconv.Atoi(m[1])
	return unix.Errno(n).Error() == words
}

var (
	numberPattern = regexp.MustCompile(`(?i)(?:error|failure|failed|with|code|result|return value|returned|ret|rc|status)\W{0,5}(?:\(|=)?\s*(\d{1,3})\b|\b(\d{1,3}) vs\. 0\b|[^\w(]\((\d{1,3})\)`)
	// notResults are what has numbers of its own.
	notResults = regexp.MustCompile(`(?i)\b(?:exit(?:ed|code)?|http\S*|errno|os error|lines?|pid|signal|retcode|port|rank|device|gpu|version)\W*(?:(?:with|status|code|error)\W*)*$|\*\*\* \[.*\] Error $`)
	failing    = regexp.MustCompile(`(?i)error|fail|wrong|refused`)
)

// numberIn returns the result whose number a text has behind words of CUDA, or 0.
func numberIn(text string) sys.CUresult {
	for _, at := range numberPattern.FindAllStringSubmatchIndex(text, -1) {
		begin, end := max(at[2], at[4], at[6]), max(at[3], at[5], at[7])
		before := text[:begin]
		n, _ := strconv.Atoi(text[begin:end])
		inBrackets := at[6] >= 0
		switch {
		case known(n) == 0, !ofCUDA(before), notResults.MatchString(before):
		case inBrackets && len(callsIn(before)) == 0 && !failing.MatchString(before):
		case inBrackets && strings.HasSuffix(strings.ToLower(strings.TrimRight(before, " (:")), unix.Errno(n).Error()):
		default:
			return known(n)
		}
	}
	return 0
}

// words are the driver's own for each result (cuGetErrorString).
var words = map[sys.CUresult]string{
	sys.CUDA_ERROR_INVALID_VALUE:                  "invalid argument",
	sys.CUDA_ERROR_OUT_OF_MEMORY:                  "out of memory",
	sys.CUDA_ERROR_NOT_INITIALIZED:                "initialization error",
	sys.CUDA_ERROR_DEINITIALIZED:                  "driver shutting down",
	sys.CUDA_ERROR_PROFILER_DISABLED:              "profiler disabled while using external profiling tool",
	sys.CUDA_ERROR_PROFILER_NOT_INITIALIZED:       "profiler not initialized: call cudaProfilerInitialize()",
	sys.CUDA_ERROR_PROFILER_ALREADY_STARTED:       "profiler already started",
	sys.CUDA_ERROR_PROFILER_ALREADY_STOPPED:       "profiler already stopped",
	sys.CUDA_ERROR_STUB_LIBRARY:                   "CUDA driver is a stub library",
	sys.CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER:     "API call is not supported in the installed CUDA driver",
	sys.CUDA_ERROR_DEVICE_UNAVAILABLE:             "CUDA-capable device(s) is/are busy or unavailable",
	sys.CUDA_ERROR_NO_DEVICE:                      "no CUDA-capable device is detected",
	sys.CUDA_ERROR_INVALID_DEVICE:                 "invalid device ordinal",
	sys.CUDA_ERROR_DEVICE_NOT_LICENSED:            "device doesn't have valid Grid license",
	sys.CUDA_ERROR_INVALID_IMAGE:                  "device kernel image is invalid",
	sys.CUDA_ERROR_INVALID_CONTEXT:                "invalid device context",
	sys.CUDA_ERROR_CONTEXT_ALREADY_CURRENT:        "context already current",
	sys.CUDA_ERROR_MAP_FAILED:                     "mapping of buffer object failed",
	sys.CUDA_ERROR_UNMAP_FAILED:                   "unmapping of buffer object failed",
	sys.CUDA_ERROR_ARRAY_IS_MAPPED:                "array is mapped",
	sys.CUDA_ERROR_ALREADY_MAPPED:                 "resource already mapped",
	sys.CUDA_ERROR_NO_BINARY_FOR_GPU:              "no kernel image is available for execution on the device",
	sys.CUDA_ERROR_ALREADY_ACQUIRED:               "resource already acquired",
	sys.CUDA_ERROR_NOT_MAPPED:                     "resource not mapped",
	sys.CUDA_ERROR_NOT_MAPPED_AS_ARRAY:            "resource not mapped as array",
	sys.CUDA_ERROR_NOT_MAPPED_AS_POINTER:          "resource not mapped as pointer",
	sys.CUDA_ERROR_ECC_UNCORRECTABLE:              "uncorrectable ECC error encountered",
	sys.CUDA_ERROR_UNSUPPORTED_LIMIT:              "limit is not supported on this architecture",
	sys.CUDA_ERROR_CONTEXT_ALREADY_IN_USE:         "exclusive-thread device already in use by a different thread",
	sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:        "peer access is not supported between these two devices",
	sys.CUDA_ERROR_INVALID_PTX:                    "a PTX JIT compilation failed",
	sys.CUDA_ERROR_INVALID_GRAPHICS_CONTEXT:       "invalid OpenGL or DirectX context",
	sys.CUDA_ERROR_NVLINK_UNCORRECTABLE:           "uncorrectable NVLink error detected during the execution",
	sys.CUDA_ERROR_JIT_COMPILER_NOT_FOUND:         "PTX JIT compiler library not found",
	sys.CUDA_ERROR_UNSUPPORTED_PTX_VERSION:        "the provided PTX was compiled with an unsupported toolchain",
	sys.CUDA_ERROR_JIT_COMPILATION_DISABLED:       "PTX JIT compilation was disabled",
	sys.CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY:      "the provided execution affinity is not supported",
	sys.CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC:       "the provided PTX contains unsupported call to cudaDeviceSynchronize",
	sys.CUDA_ERROR_CONTAINED:                      "Invalid access of peer GPU memory over nvlink or a hardware error",
	sys.CUDA_ERROR_INVALID_SOURCE:                 "device kernel image is invalid", // as of INVALID_IMAGE
	sys.CUDA_ERROR_FILE_NOT_FOUND:                 "file not found",
	sys.CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND: "shared object symbol not found",
	sys.CUDA_ERROR_SHARED_OBJECT_INIT_FAILED:      "shared object initialization failed",
	sys.CUDA_ERROR_OPERATING_SYSTEM:               "OS call failed or operation not supported on this OS",
	sys.CUDA_ERROR_INVALID_HANDLE:                 "invalid resource handle",
	sys.CUDA_ERROR_ILLEGAL_STATE:                  "the operation cannot be performed in the present state",
	sys.CUDA_ERROR_LOSSY_QUERY:                    "attempted introspection would be semantically lossy",
	sys.CUDA_ERROR_NOT_FOUND:                      "named symbol not found",
	sys.CUDA_ERROR_NOT_READY:                      "device not ready",
	sys.CUDA_ERROR_ILLEGAL_ADDRESS:                "an illegal memory access was encountered",
	sys.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:        "too many resources requested for launch",
	sys.CUDA_ERROR_LAUNCH_TIMEOUT:                 "the launch timed out and was terminated",
	sys.CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING:  "launch uses incompatible texturing mode",
	sys.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:    "peer access is already enabled",
	sys.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED:        "peer access has not been enabled",
	sys.CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE:         "cannot set while device is active in this process",
	sys.CUDA_ERROR_CONTEXT_IS_DESTROYED:           "context is destroyed",
	sys.CUDA_ERROR_ASSERT:                         "device-side assert triggered",
	sys.CUDA_ERROR_TOO_MANY_PEERS:                 "peer mapping resources exhausted",
	sys.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: "part or all of the requested memory range is already mapped",
	sys.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:     "pointer does not correspond to a registered memory region",
	sys.CUDA_ERROR_HARDWARE_STACK_ERROR:           "hardware stack error",
	sys.CUDA_ERROR_ILLEGAL_INSTRUCTION:            "an illegal instruction was encountered",
	sys.CUDA_ERROR_MISALIGNED_ADDRESS:             "misaligned address",
	sys.CUDA_ERROR_INVALID_ADDRESS_SPACE:          "operation not supported on global/shared address space",
	sys.CUDA_ERROR_INVALID_PC:                     "invalid program counter",
	sys.CUDA_ERROR_LAUNCH_FAILED:                  "unspecified launch failure",
	sys.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:   "too many blocks in cooperative launch",
	sys.CUDA_ERROR_TENSOR_MEMORY_LEAK:             "tensor memory not completely freed",
	sys.CUDA_ERROR_NOT_PERMITTED:                  "operation not permitted",
	sys.CUDA_ERROR_NOT_SUPPORTED:                  "operation not supported",
	sys.CUDA_ERROR_SYSTEM_NOT_READY:               "system not yet initialized",
	sys.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:         "system has unsupported display driver / cuda driver combination",
	sys.CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: "forward compatibility was attempted on non supported HW",
	sys.CUDA_ERROR_MPS_CONNECTION_FAILED:          "MPS client failed to connect to the MPS control daemon or the MPS server",
	sys.CUDA_ERROR_MPS_RPC_FAILURE:                "the remote procedural call between the MPS server and the MPS client failed",
	sys.CUDA_ERROR_MPS_SERVER_NOT_READY:           "MPS server is not ready to accept new MPS client requests",
	sys.CUDA_ERROR_MPS_MAX_CLIENTS_REACHED:        "the hardware resources required to create MPS client have been exhausted",
	sys.CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED:    "the hardware resources required to support device connections have been exhausted",
	sys.CUDA_ERROR_MPS_CLIENT_TERMINATED:          "the MPS client has been terminated by the server",
	sys.CUDA_ERROR_CDP_NOT_SUPPORTED:              "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it",
	sys.CUDA_ERROR_CDP_VERSION_MISMATCH:           "unsupported interaction between different versions of CUDA Dynamic Parallelism",
	sys.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:     "operation not permitted when stream is capturing",
	sys.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:     "operation failed due to a previous error during capture",
	sys.CUDA_ERROR_STREAM_CAPTURE_MERGE:           "operation would result in a merge of separate capture sequences",
	sys.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:       "capture was not ended in the same stream as it began",
	sys.CUDA_ERROR_STREAM_CAPTURE_UNJOINED:        "capturing stream has unjoined work",
	sys.CUDA_ERROR_STREAM_CAPTURE_ISOLATION:       "dependency created on uncaptured work in another stream",
	sys.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:        "operation would make the legacy stream depend on a capturing blocking stream",
	sys.CUDA_ERROR_CAPTURED_EVENT:                 "operation not permitted on an event last recorded in a capturing stream",
	sys.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:    "attempt to terminate a thread-local capture sequence from another thread",
	sys.CUDA_ERROR_TIMEOUT:                        "wait operation timed out",
	sys.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE:      "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update",
	sys.CUDA_ERROR_EXTERNAL_DEVICE:                "an async error has occured in external entity outside of CUDA", // as the driver spells it
	sys.CUDA_ERROR_INVALID_CLUSTER_SIZE:           "a kernel launch error has occurred due to cluster misconfiguration",
	sys.CUDA_ERROR_FUNCTION_NOT_LOADED:            "the function handle is not loaded when calling an API that requires a loaded function",
	sys.CUDA_ERROR_INVALID_RESOURCE_TYPE:          "one or more resources passed in are not valid resource types for the operation",
	sys.CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION: "one or more resources are insufficient or non-applicable for the operation",
	sys.CUDA_ERROR_KEY_ROTATION:                   "an error happened during the key rotation sequence",
	sys.CUDA_ERROR_UNKNOWN:                        "unknown error",
}
