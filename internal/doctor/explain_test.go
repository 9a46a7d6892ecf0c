package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/hints"
)

// ids are the causes of a meaning.
func ids(m Meaning) (all []string) {
	for _, c := range m.Causes {
		all = append(all, c.ID)
	}
	return all
}

// A result is known by its number, by its name in either API, and by the driver's words.
func TestExplain(t *testing.T) {
	for text, want := range map[string][]string{
		"201":                            {"own-handle", "pid-equal"},
		"CUDA_ERROR_INVALID_CONTEXT":     {"own-handle", "pid-equal"},
		"invalid_context":                {"own-handle", "pid-equal"},
		"cudaErrorDeviceUninitialized":   {"own-handle", "pid-equal"},
		"cudaErrorMapBufferObjectFailed": {"shm-common", "event-owner", "uid-common"},
		"802":                            {"system-not-ready"},
		"cuIpcOpenEventHandle: CUDA_ERROR_MAP_FAILED (205): mapping failed":                   {"shm-common", "event-owner"},
		"cudaIpcOpenMemHandle failed: invalid resource handle":                                {"owner-gone"},
		"CUDA_ERROR_INVALID_HANDLE":                                                           {"owner-gone"},
		"cuInit: error 999":                                                                   nil,
		"Error 805: MPS client failed to connect to the MPS control daemon or the MPS server": {"mps-directory"},
		"cuMemImportFromShareableHandle failed with 999: unknown error":                       {"handle-kind"},
		"cuMemImportFromShareableHandle: error 999":                                           {"handle-kind"},
		"pid-equal":   {"pid-equal"},
		" MIG\n":      {"mig"},
		"all is well": nil,
		"":            nil,
		"0":           nil,
		"99999":       nil,
		"-1":          nil,
	} {
		require.Equal(t, want, ids(Explain(text)), text)
	}
	require.Equal(t, "cuIpcOpenMemHandle", Explain("cudaIpcOpenMemHandle: invalid device context").Call)
	require.NotEmpty(t, Explain("cuInit: CUDA_ERROR_UNKNOWN (999)").Hints, "from the table of the library's hints")
}

// Whatever a line is, explaining it does not panic.
func FuzzExplain(f *testing.F) {
	for _, s := range []string{"201", "cuIpcOpenMemHandle: (1)", "error: 4294967295", "CUDA_ERROR_", "\x00 vs. 0", "ret:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, c := range Explain(s).Causes {
			_, ok := hints.Find(c.ID)
			require.True(t, ok)
		}
	})
}

// reports are errors from public trackers, each as far as its line goes, with the cause that
// its thread found.
var reports = []struct {
	source string // on github.com
	line   string
	found  string
	cause  string // "" where doctor names others: it has not got this one
}{
	{"openucx/ucx#11603", "UCX  ERROR cuIpcOpenMemHandle() failed: invalid device context",
		"the handle was of the same process", "own-handle"},
	{"flashinfer-ai/flashinfer#4089", "RuntimeError: pidfd_getfd(pidfd=..., fd=...) failed with errno 1: Operation not permitted.",
		"the default seccomp profile of Docker, and Yama between siblings", "pidfd-getfd"},
	{"microsoft/mscclpp#467", "cuMemCreate failed: operation not permitted",
		"no IMEX channel for fabric handles", "imex-channel"},
	{"kubernetes-sigs/dra-driver-nvidia-gpu#294", "cuMemImportFromShareableHandle() fails with CUDA failure 101", // as NVIDIA/nccl#1647 quotes it
		"two containers of one node with one GPU each, so that the exporter's is not in the importer's; of two nodes it works", "gpu-hidden"},
	{"ollama/ollama#12136", "ggml_cuda_init: failed to initialize CUDA: system not yet initialized",
		"the fabric manager was of another version than the driver", "system-not-ready"},
	{"pytorch/pytorch#973", "RuntimeError: received 0 items of ancdata",
		"the limit of open files", "fd-limit"},
	{"JuliaGPU/CUDA.jl#1053", "The call to cuIpcGetMemHandle failed. cuIpcGetMemHandle return value:   1",
		"memory of the stream-ordered allocator", "legacy-kind"},
	{"mudler/LocalAI#11973", "ImportError: libcuda.so.1: cannot open shared object file",
		"a container with the driver capability utility and without compute", "no-libcuda"},
	{"huggingface/pytorch-image-models#1033", "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
		"GPUs in exclusive mode, and a second process", "compute-mode"},
	{"tinygrad/open-gpu-kernel-modules#16", "Cuda failure p2pBandwidthLatencyTest.cu:189: 'mapping of buffer object failed'",
		"the large BAR was off in the firmware, for peer access with a patched driver", ""},
}

// doctor names the cause of nine of the ten, first.
func TestReports(t *testing.T) {
	require.Len(t, reports, 10)
	named := 0
	for _, r := range reports {
		if got := ids(Explain(r.line)); r.cause != "" {
			require.NotEmpty(t, got, r.source)
			require.Equal(t, r.cause, got[0], r.source)
			named++
		}
	}
	require.Equal(t, 9, named)
}
