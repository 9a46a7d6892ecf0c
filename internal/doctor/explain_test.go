package doctor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/advice"
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
		"201":                            {"own-handle", "pid-equal", "no-context"},
		"CUDA_ERROR_INVALID_CONTEXT":     {"own-handle", "pid-equal", "no-context"},
		"invalid_context":                {"own-handle", "pid-equal", "no-context"},
		"cudaErrorDeviceUninitialized":   {"own-handle", "pid-equal", "no-context"},
		"cudaErrorMapBufferObjectFailed": {"shm-common", "event-owner", "uid-common"},
		"802":                            {"system-not-ready"},
		"cuIpcOpenEventHandle: CUDA_ERROR_MAP_FAILED (205): mapping failed":                   {"shm-common", "event-owner"},
		"cudaIpcOpenMemHandle failed: invalid resource handle":                                {"owner-gone"},
		"CUDA_ERROR_INVALID_HANDLE":                                                           {"owner-gone"},
		"cuInit: error 999":                                                                   {"nvidia-uvm"},
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
			_, ok := advice.Find(c.ID)
			require.True(t, ok)
		}
	})
}

// lines are the cases of what people report, with the cause that has to come first and what the
// explanation must not say.
var lines = []struct{ line, cause, result, not string }{
	{`Error toggling CUDA in process: "OS call failed or operation not supported on this OS"`, "checkpoint", "CUDA_ERROR_OPERATING_SYSTEM (304)", `(?i)801|legacy|not_supported`},
	{"Error while attaching to shared memory segment, error: No such file or directory (2)", "shm-gone", "", "OUT_OF_MEMORY"},
	{"custom_all_reduce: 'resource already mapped'", "already-open", "CUDA_ERROR_ALREADY_MAPPED (208)", ""},
	{"custom_all_reduce: 'invalid argument'", "legacy-kind", "CUDA_ERROR_INVALID_VALUE (1)", ""},
	{"cuInit failed: initialization error", "fork", "CUDA_ERROR_NOT_INITIALIZED (3)", ""},
	{"Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method", "fork", "", ""},
	{"CUDA_ERROR_UNKNOWN in cuCtxCreate", "nvidia-uvm", "CUDA_ERROR_UNKNOWN (999)", ""},
	{"Producer process has been terminated before all shared CUDA tensors released", "owner-gone", "", ""},
	// NVIDIA/nccl#1589, NVIDIA/DALI#4817, MonoGS#127, cuda-checkpoint#44: their threads found nothing.
	{"misc/shmutils.cc:129 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-glnlGK (size 14156128), error: No such file or directory (2)", "shm-gone", "", ""},
	{"cudaIpcOpenMemHandle: RuntimeError: CUDA runtime API error cudaErrorDeviceUninitialized (201): invalid device context", "own-handle", "CUDA_ERROR_INVALID_CONTEXT (201)", ""},
	{"[W CudaIPCTypes.cpp:15] Producer process has been terminated before all shared CUDA tensors released. See Note [Sharing CUDA tensors]", "owner-gone", "", ""},
	{"cuda-checkpoint --action restore: OS call failed or operation not supported on this OS (304)", "checkpoint", "CUDA_ERROR_OPERATING_SYSTEM (304)", ""},
	// Their kind.
	{"cuCheckpointProcessRestore failed: operation not supported", "checkpoint", "CUDA_ERROR_NOT_SUPPORTED (801)", ""},
	{"cuCheckpointProcessUnlock returned 401", "checkpoint", "CUDA_ERROR_ILLEGAL_STATE (401)", ""},
	{"cuIpcOpenMemHandle: operation not supported on global/shared address space", "", "CUDA_ERROR_INVALID_ADDRESS_SPACE (717)", ""},
	{"CUDA failure 304: OS call failed or operation not supported on this OS", "fd-limit", "CUDA_ERROR_OPERATING_SYSTEM (304)", "801"},
	{"Cuda failure 208", "already-open", "CUDA_ERROR_ALREADY_MAPPED (208)", ""},
	{"jaxlib: INTERNAL: cuIpcOpenMemHandle failed (201 vs. 0)", "own-handle", "CUDA_ERROR_INVALID_CONTEXT (201)", ""},
	{"cuMemImportFromShareableHandle: Operation not permitted (1)", "", "", "INVALID_VALUE|NOT_PERMITTED"},
	{"cuMemCreate: operation not permitted (800)", "imex-channel", "CUDA_ERROR_NOT_PERMITTED (800)", ""},
	{"runsc: nvproxy: failed", "gvisor", "", ""},
	{"RuntimeError: invalid device pointer: 0x7f0000000000", "torch-own", "", ""},
	{"Producer process tried to deallocate over 1000 memory blocks referred by consumer processes. Deallocation might be significantly slowed down.", "consumers-hold", "", ""},
	{"RuntimeError: The NVIDIA driver on your system is too old: CUDA driver version is insufficient for CUDA runtime version", "libcuda-version", "", ""},
}

// The cause of each of these comes first, with the result that the line has and no other.
func TestLines(t *testing.T) {
	for _, l := range lines {
		m := Explain(l.line)
		first := strings.Join(ids(m), " ")
		first, _, _ = strings.Cut(first, " ")
		require.Equal(t, l.cause, first, l.line)
		require.Equal(t, l.result, m.Result, l.line)
		if l.not != "" {
			require.NotRegexp(t, l.not, fmt.Sprintf("%+v", m), l.line)
		}
		require.True(t, m.Known(), l.line)
	}
	require.Contains(t, Explain("Error while attaching to shared memory segment, error: No such file or directory (2)").Other, "ENOENT (2), no such file or directory: an error of the system")
}

// Numbers and words of others are not taken for results of the driver. What they are is said
// where it is known.
func TestNoResults(t *testing.T) {
	for text, other := range map[string]string{
		"HTTP 400": "HTTP",
		"HTTP/1.1 400 Bad Request from http://cuda-cache/": "HTTP",
		"CUDA index server answered HTTP status 400":       "HTTP",
		"352 -> 1":                                                               "NCCL's trace",
		"NCCL INFO transport/p2p.cc:352 -> 1":                                    "NCCL's trace",
		"NCCL INFO misc/cudawrap.cc:201 -> 3":                                    "NCCL's trace",
		"bind: invalid argument":                                                 "EINVAL (22)",
		"listen unix /tmp/s: bind: operation not permitted":                      "EPERM (1)",
		"connect to [::1]:400 failed: Connection refused (111)":                  "ECONNREFUSED (111)",
		"OSError: [Errno 12] Cannot allocate memory":                             "ENOMEM (12)",
		"open /dev/nvidiactl failed: Permission denied (13)":                     "EACCES (13)",
		"nvidia-cuda-mps-control: open: Operation not permitted (os error 1)":    "EPERM (1)",
		"cudaMalloc wrapper: mmap failed with errno 1":                           "EPERM (1)",
		"setsockopt: operation not supported":                                    "(95), operation not supported",
		"ibv_create_cq failed with error Cannot allocate memory":                 "ENOMEM (12)",
		"Process finished with exit code 2":                                      "exit status",
		"CUDA worker exited with code 1":                                         "exit status",
		"torch.cuda worker (pid 205) exited unexpectedly with exit code 1":       "exit status",
		"make: *** [Makefile:3: cuda.o] Error 2":                                 "exit status",
		"Out of memory: Killed process 201 (python3)":                            "",
		"see write(2) of the CUDA samples":                                       "",
		"error 700 of 1000 requests":                                             "",
		"psql: error code 208":                                                   "",
		"Failed to execute operation Connect from rank 10, retcode 3":            "",
		"cudaMemcpy took 201 us on device 2 (rank 1)":                            "",
		"CUDA samples: built all (201)":                                          "",
		"CUDA_VISIBLE_DEVICES=1":                                                 "",
		"unknown error":                                                          "-", // all of it is the driver's
		"the loop of 3 failed with 999":                                          "",
		"UserWarning: CUDA initialization (Triggered internally at a.cpp:100.)":  "",
		"gpufd: file not found":                                                  "",
		"compiled kernel.cu:201 -> 2 with nvcc":                                  "NCCL's trace",
		"W0509 frontend.go:521] [   6:  20] unknown command 0x3d05 (params = 1)": "",
	} {
		m := Explain(text)
		if other == "-" {
			require.NotEmpty(t, m.Result, text)
			continue
		}
		require.Empty(t, m.Result, text)
		require.Empty(t, ids(m), text)
		require.Contains(t, m.Other, other, text)
		require.Equal(t, other != "", m.Known(), text)
	}
}

// Each result is known by its number, its name and the driver's words for it, alone and in a line.
func TestEveryResult(t *testing.T) {
	for r := sys.CUresult(1); r <= sys.CUDA_ERROR_UNKNOWN; r++ {
		if !strings.HasPrefix(r.String(), "CUDA_ERROR_") {
			require.Empty(t, words[r])
			continue
		}
		require.NotEmpty(t, words[r], r)
		want := fmt.Sprintf("%v (%d)", r, r)
		for _, text := range []string{
			fmt.Sprint(int(r)), r.String(), strings.ToLower(r.String()), strings.TrimPrefix(r.String(), "CUDA_ERROR_"),
			"x failed: " + r.String() + ": y", fmt.Sprintf("CUDA error %d", r), fmt.Sprintf("cuMemMap() failed, ret: %d", r),
		} {
			if _, isID := advice.Find(strings.ToLower(text)); !isID { // "timeout" is a cause
				require.Equal(t, want, Explain(text).Result, text)
			}
		}
		if r == sys.CUDA_ERROR_INVALID_SOURCE {
			continue // its words are those of another
		}
		for _, text := range []string{words[r], strings.ToUpper(words[r]), "Cuda failure '" + words[r] + "'", "cuMemMap: " + words[r]} {
			m := Explain(text)
			require.Equal(t, want, m.Result, text)
			require.Equal(t, words[r], m.Words)
		}
	}
}

// The driver says what doctor has it say.
func TestWordsAreTheDrivers(t *testing.T) {
	if cutest.Kind() != cu.CUDA {
		t.Skip("for a GPU: the software driver has words of its own")
	}
	for r, said := range words {
		p := new(*byte)
		if cutest.Driver(t).Caller().CuGetErrorString(r, p) == sys.CUDA_SUCCESS { // an older driver does not know all
			require.Equal(t, said, strings.TrimSuffix(sys.GoString(*p, 300), "."), r)
		}
	}
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
	{"vllm-project/vllm#2641", "Failed: Cuda error vllm/csrc/custom_all_reduce.cuh:417 'resource already mapped'",
		"handles of one allocation were opened twice", "already-open"},
	{"vllm-project/vllm#42609", "Failed: Cuda error custom_all_reduce.cuh:455 'invalid argument'",
		"expandable segments, and cudaIpcGetMemHandle", "legacy-kind"},
	{"NVIDIA/nccl#290", "include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device",
		"a small /dev/shm", "shm"},
	{"pytorch/ci-infra#490", "NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)",
		"a pod's /dev/shm of 64 MiB", "shm"},
	{"pytorch/pytorch#165685", "RuntimeError: pidfd_getfd: Operation not permitted",
		"expandable segments in a container without privileges", "pidfd-getfd"},
	{"alibaba/ROLL#417", "RuntimeError: pidfd_open:Operation not permitted",
		"expandable segments in a container", "pidfd-getfd"},
	{"OpenRLHF/OpenRLHF#957", "RuntimeError: The kernel on this machine does not support the pidfd_open syscall needed to use IPC for CUDA tensors when expandable_segments:True is set.",
		"expandable segments on an old kernel", "pidfd-getfd"},
	{"openucx/ucx#4707", "cuda_ipc_md.c:102  UCX  ERROR cuIpcGetMemHandle(&(key->ph), (CUdeviceptr) addr) is failed. ret:invalid device context",
		"a thread of UCX without a context", "no-context"},
	{"openucx/ucx#10618", "cuda_ipc_cache.c:132  UCX  WARN  cuIpcCloseMemHandle( (CUdeviceptr)region->mapped_addr) failed: invalid device context",
		"a thread of UCX without a context", "no-context"},
	{"openucx/ucx#3192", "cuda_ipc_cache.c:154  UCX Fatal: dest:5221: failed to open ipc mem handle. addr:0x7f7647415c00 len:89088 (Element already exists)",
		"the program had opened the handle itself", "already-open"},
	{"NVIDIA/cuda-checkpoint#6", `Error toggling CUDA in process ID 19897: "OS call failed or operation not supported on this OS"`,
		"it takes root", "checkpoint"},
	{"inducer/pycuda#137", "LogicError: cuInit failed: initialization error",
		"fork after cuInit", "fork"},
	{"IDEA-Research/GroundingDINO#276", `RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the \'spawn\' start method`,
		"fork after cuInit", "fork"},
	{"google/gvisor#10413", "nvproxy: unknown control command 0x3d05 (paramsSize=24)",
		"gVisor did not export descriptors of the driver", "gvisor"},
	{"pytorch/pytorch#36037", `Runtime Error(801) operation not supported at C:\w\1\s\windows\pytorch\torch/csrc/generic/StorageSharing.cpp:245`,
		"Windows", "legacy-unsupported"},
	{"pytorch/pytorch#134755", "Attempted to send CUDA tensor received from another process; this is not currently supported.",
		"a queue's manager passes on what it has received", "torch-own"},
	{"gbionics/jaxsim#50", "cuda_driver.cc:268] failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error",
		"a suspend; rmmod and modprobe help", "nvidia-uvm"},
	{"pytorch/pytorch#88639", "CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start.",
		"a suspend", "nvidia-uvm"},
	{"NVIDIA/nccl#1874", "NCCL WARN Cuda failure 711 'peer mapping resources exhausted'",
		"ten devices in one process", "peer-limit"},
	{"pytorch/pytorch#67864", "RuntimeError: unable to open shared memory object </torch_1556701_2897416291> in read-write mode",
		"the limit of open files", "fd-limit"},
	{"tinygrad/open-gpu-kernel-modules#16", "Cuda failure p2pBandwidthLatencyTest.cu:189: 'mapping of buffer object failed'",
		"the large BAR was off in the firmware, for peer access with a patched driver", ""},
}

// doctor names the cause of all but one, first.
func TestReports(t *testing.T) {
	named := 0
	for _, r := range reports {
		if got := ids(Explain(r.line)); r.cause != "" {
			require.NotEmpty(t, got, r.source)
			require.Equal(t, r.cause, got[0], r.source)
			named++
		}
	}
	require.Equal(t, len(reports)-1, named)
}
