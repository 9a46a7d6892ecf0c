package soft

import (
	"strings"
	"sync"

	"github.com/gpufd/gpufd/cu/sys"
)

// cStrings holds the C strings that were given out: callers keep the addresses for ever.
var cStrings sync.Map

// cString returns s as a C string, the same each time.
func cString(s string) *byte {
	p, ok := cStrings.Load(s)
	if !ok {
		p, _ = cStrings.LoadOrStore(s, sys.CString(s))
	}
	return p.(*byte)
}

// cuGetErrorName needs no cuInit. For a number that is not a result it stores a
// null pointer and returns CUDA_ERROR_INVALID_VALUE.
func (m *machine) cuGetErrorName(r sys.CUresult, out **byte) sys.CUresult {
	return errorText(r, out, r.String())
}

// cuGetErrorString is cuGetErrorName for a sentence.
func (m *machine) cuGetErrorString(r sys.CUresult, out **byte) sys.CUresult {
	text := errorTexts[r]
	if text == "" {
		text = strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(r.String(), "CUDA_ERROR_")), "_", " ")
	}
	return errorText(r, out, text)
}

func errorText(r sys.CUresult, out **byte, text string) sys.CUresult {
	if out == nil {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	if !strings.HasPrefix(r.String(), "CUDA_") { // but a number
		*out = nil
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	return set(out, cString(text))
}

// errorTexts says what each result of this driver means. The others are described
// by their names.
var errorTexts = map[sys.CUresult]string{
	sys.CUDA_SUCCESS:                              "no error",
	sys.CUDA_ERROR_INVALID_VALUE:                  "an argument is outside what the call accepts",
	sys.CUDA_ERROR_OUT_OF_MEMORY:                  "not enough memory",
	sys.CUDA_ERROR_NOT_INITIALIZED:                "cuInit has not been called or has failed",
	sys.CUDA_ERROR_NO_DEVICE:                      "no device is visible",
	sys.CUDA_ERROR_INVALID_DEVICE:                 "no such device, or it cannot do this",
	sys.CUDA_ERROR_INVALID_IMAGE:                  "the module is not a valid image",
	sys.CUDA_ERROR_INVALID_CONTEXT:                "no valid context is current",
	sys.CUDA_ERROR_MAP_FAILED:                     "mapping failed",
	sys.CUDA_ERROR_NO_BINARY_FOR_GPU:              "the module has no code for this device",
	sys.CUDA_ERROR_UNSUPPORTED_LIMIT:              "the device does not have this limit",
	sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:        "the devices cannot access each other",
	sys.CUDA_ERROR_INVALID_PTX:                    "the PTX does not compile",
	sys.CUDA_ERROR_UNSUPPORTED_PTX_VERSION:        "the PTX is newer than the driver",
	sys.CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY:      "the device does not have this execution affinity",
	sys.CUDA_ERROR_FILE_NOT_FOUND:                 "the file was not found",
	sys.CUDA_ERROR_OPERATING_SYSTEM:               "a call to the operating system failed",
	sys.CUDA_ERROR_INVALID_HANDLE:                 "the handle is not valid",
	sys.CUDA_ERROR_ILLEGAL_STATE:                  "the object is in the wrong state for this",
	sys.CUDA_ERROR_NOT_FOUND:                      "it was not found",
	sys.CUDA_ERROR_NOT_READY:                      "earlier work is not finished",
	sys.CUDA_ERROR_ILLEGAL_ADDRESS:                "device code or a copy touched memory it may not touch",
	sys.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:        "the launch needs more than the device has",
	sys.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:    "peer access is enabled already",
	sys.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED:        "peer access is not enabled",
	sys.CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE:         "the primary context is active already",
	sys.CUDA_ERROR_CONTEXT_IS_DESTROYED:           "the context has been destroyed",
	sys.CUDA_ERROR_ASSERT:                         "an assertion failed in device code",
	sys.CUDA_ERROR_TOO_MANY_PEERS:                 "no more peers can be enabled",
	sys.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: "the host memory is registered already",
	sys.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:     "the host memory is not registered",
	sys.CUDA_ERROR_MISALIGNED_ADDRESS:             "device code used a misaligned address",
	sys.CUDA_ERROR_INVALID_PC:                     "device code jumped out of its program",
	sys.CUDA_ERROR_LAUNCH_FAILED:                  "device code failed",
	sys.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:   "the cooperative launch has too many blocks",
	sys.CUDA_ERROR_NOT_PERMITTED:                  "the operation is not permitted",
	sys.CUDA_ERROR_NOT_SUPPORTED:                  "the operation is not supported",
	sys.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:     "the operation is not allowed while a stream is captured",
	sys.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:     "an earlier error spoilt the capture",
	sys.CUDA_ERROR_STREAM_CAPTURE_MERGE:           "the operation would merge two captures",
	sys.CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:       "the capture did not begin on this stream",
	sys.CUDA_ERROR_STREAM_CAPTURE_UNJOINED:        "the capture has a branch that was not joined",
	sys.CUDA_ERROR_STREAM_CAPTURE_ISOLATION:       "the capture would depend on work outside it",
	sys.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:        "the capture would depend on the legacy default stream",
	sys.CUDA_ERROR_CAPTURED_EVENT:                 "the event was recorded in a capture",
	sys.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:    "the capture belongs to another thread",
	sys.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE:      "the graph has changed too much to be updated",
	sys.CUDA_ERROR_UNKNOWN:                        "unknown error",
}
