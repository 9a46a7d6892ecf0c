package advice

import (
	"cmp"
	"regexp"
	"slices"
	"sync"

	"github.com/gpufd/gpufd/cu/sys"
)

// A Cause is something that gpufd doctor checks, or a reason why sharing fails.
// docs/doctor.md has a section for each.
type Cause struct {
	ID      string `json:"id"`                  // stable
	Title   string `json:"title"`               // what is checked, or what is wrong
	Why     string `json:"why"`                 // why it matters
	Do      string `json:"do"`                  // what to do about it
	Untried string `json:"not_tried,omitempty"` // why no test and no check of doctor shows it, or ""
}

// Find returns the cause with that id.
func Find(id string) (c Cause, ok bool) {
	i := slices.IndexFunc(Causes, func(c Cause) bool { return c.ID == id })
	if i < 0 {
		return Cause{}, false
	}
	return Causes[i], true
}

// CausesOf returns the ids of the causes of a function's result, for any version of the
// function, the likeliest first. Without a function it returns those of all
// functions.
func CausesOf(op string, r sys.CUresult) (ids []string) {
	if op != "" {
		if ids, ok := causesOf[Call{trimVersion(op), r}]; ok {
			return slices.Clone(ids)
		}
		return slices.Clone(causesOf[Call{"", r}])
	}
	for _, c := range Calls(r) {
		for _, id := range causesOf[c] {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	slices.SortStableFunc(ids, func(a, b string) int { return rare[a] - rare[b] })
	return ids
}

// rare are the causes that come last where no function is named.
var rare = map[string]int{"no-context": 1, "checkpoint": 1}

// Calls returns, sorted, the functions with results r that this package knows about. One
// without a name stands for all others.
func Calls(r sys.CUresult) (calls []Call) {
	for _, table := range []map[Call]string{both, onlyCUDA} {
		for c := range table {
			if c.Result == r {
				calls = append(calls, c)
			}
		}
	}
	for c := range causesOf {
		if c.Result == r && !slices.Contains(calls, c) {
			calls = append(calls, c)
		}
	}
	slices.SortFunc(calls, func(a, b Call) int { return cmp.Compare(a.Op, b.Op) })
	return calls
}

// causesOf lists the causes of results that are about sharing.
var causesOf = map[Call][]string{
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_INVALID_CONTEXT}:              {"own-handle", "pid-equal"},
	{"cuIpcOpenEventHandle", sys.CUDA_ERROR_INVALID_CONTEXT}:            {"own-handle", "pid-equal"},
	{"cuIpcGetMemHandle", sys.CUDA_ERROR_INVALID_CONTEXT}:               {"no-context"},
	{"cuIpcCloseMemHandle", sys.CUDA_ERROR_INVALID_CONTEXT}:             {"no-context"},
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_ALREADY_MAPPED}:               {"already-open"},
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_INVALID_HANDLE}:               {"owner-gone"},
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_INVALID_VALUE}:                {"owner-gone"},
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_MAP_FAILED}:                   {"uid-common", "shm-common"},
	{"cuIpcOpenEventHandle", sys.CUDA_ERROR_MAP_FAILED}:                 {"shm-common", "event-owner"},
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED}:      {"peer-access"},
	{"cuIpcOpenMemHandle", sys.CUDA_ERROR_NOT_SUPPORTED}:                {"legacy-unsupported"},
	{"cuIpcGetMemHandle", sys.CUDA_ERROR_NOT_SUPPORTED}:                 {"legacy-unsupported"},
	{"cuIpcGetEventHandle", sys.CUDA_ERROR_NOT_SUPPORTED}:               {"legacy-unsupported"},
	{"cuIpcOpenEventHandle", sys.CUDA_ERROR_NOT_SUPPORTED}:              {"legacy-unsupported"},
	{"cuEventCreate", sys.CUDA_ERROR_NOT_SUPPORTED}:                     {"legacy-unsupported"},
	{"cuMemGetAllocationGranularity", sys.CUDA_ERROR_NOT_SUPPORTED}:     {"no-vmm", "vgpu"},
	{"cuMemAddressReserve", sys.CUDA_ERROR_NOT_SUPPORTED}:               {"no-vmm", "vgpu"},
	{"cuIpcGetMemHandle", sys.CUDA_ERROR_INVALID_VALUE}:                 {"legacy-kind"},
	{"cuMemImportFromShareableHandle", sys.CUDA_ERROR_INVALID_DEVICE}:   {"gpu-hidden"},
	{"cuMemImportFromShareableHandle", sys.CUDA_ERROR_UNKNOWN}:          {"handle-kind"},
	{"cuMemImportFromShareableHandle", sys.CUDA_ERROR_INVALID_VALUE}:    {"handle-kind"},
	{"cuMemImportFromShareableHandle", sys.CUDA_ERROR_NOT_PERMITTED}:    {"imex-channel"},
	{"cuMemImportFromShareableHandle", sys.CUDA_ERROR_NOT_SUPPORTED}:    {"imex-channel"},
	{"cuMemImportFromShareableHandle", sys.CUDA_ERROR_OPERATING_SYSTEM}: {"fd-limit"},
	{"cuMemExportToShareableHandle", sys.CUDA_ERROR_INVALID_VALUE}:      {"handle-kind"},
	{"cuMemExportToShareableHandle", sys.CUDA_ERROR_NOT_PERMITTED}:      {"imex-channel"},
	{"cuMemExportToShareableHandle", sys.CUDA_ERROR_OPERATING_SYSTEM}:   {"fd-limit"},
	{"cuMemCreate", sys.CUDA_ERROR_NOT_PERMITTED}:                       {"imex-channel"},
	{"cuMemCreate", sys.CUDA_ERROR_NOT_SUPPORTED}:                       {"no-vmm", "vgpu"},
	{"cuInit", sys.CUDA_ERROR_UNKNOWN}:                                  {"nvidia-uvm"},
	{"cuCtxCreate", sys.CUDA_ERROR_UNKNOWN}:                             {"nvidia-uvm"},
	{"cuDevicePrimaryCtxRetain", sys.CUDA_ERROR_UNKNOWN}:                {"nvidia-uvm"},
	{"cuCheckpointProcessRestore", sys.CUDA_ERROR_NOT_SUPPORTED}:        {"checkpoint"},
	{"cuCheckpointProcessRestore", sys.CUDA_ERROR_OPERATING_SYSTEM}:     {"checkpoint"},
	{"cuCheckpointProcessUnlock", sys.CUDA_ERROR_ILLEGAL_STATE}:         {"checkpoint"},
	{"cuInit", sys.CUDA_ERROR_NO_DEVICE}:                                {"visible-devices"},
	{"", sys.CUDA_ERROR_NOT_INITIALIZED}:                                {"fork"},
	{"", sys.CUDA_ERROR_TOO_MANY_PEERS}:                                 {"peer-limit"},
	{"", sys.CUDA_ERROR_NO_DEVICE}:                                      {"visible-devices"},
	{"", sys.CUDA_ERROR_INVALID_DEVICE}:                                 {"gpu-hidden", "visible-devices"},
	{"", sys.CUDA_ERROR_DEVICE_UNAVAILABLE}:                             {"compute-mode"},
	{"", sys.CUDA_ERROR_SYSTEM_NOT_READY}:                               {"system-not-ready"},
	{"", sys.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH}:                         {"driver-mismatch"},
	{"", sys.CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE}:                 {"libcuda-duplicates"},
	{"", sys.CUDA_ERROR_STUB_LIBRARY}:                                   {"libcuda-duplicates"},
	{"", sys.CUDA_ERROR_MPS_CONNECTION_FAILED}:                          {"mps-directory"},
	{"", sys.CUDA_ERROR_DEVICE_NOT_LICENSED}:                            {"vgpu"},
	{"", sys.CUDA_ERROR_ILLEGAL_ADDRESS}:                                {"context-lost"},
	{"", sys.CUDA_ERROR_LAUNCH_FAILED}:                                  {"context-lost"},
	{"", sys.CUDA_ERROR_MPS_CLIENT_TERMINATED}:                          {"context-lost"},
	{"", sys.CUDA_ERROR_OUT_OF_MEMORY}:                                  {"held-memory"},
	{"", sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED}:                        {"peer-access"},
}

// A word is a pattern in a line of a log, with the causes that it shows.
type word struct {
	pattern *regexp.Regexp
	causes  []string
}

// words are for lines that name no result of the driver, or whose cause needs none.
var words = sync.OnceValue(func() (all []word) {
	for _, w := range []struct {
		pattern string
		causes  []string
	}{
		{`pidfd_getfd`, []string{"pidfd-getfd", "yama"}},
		{`pidfd_open`, []string{"pidfd-getfd", "pid-namespace"}},
		{`items of ancdata|too many open files|msg_ctrunc|file descriptors were lost|emfile`, []string{"fd-limit"}},
		{`libcuda\.so(\.1)?: cannot open shared object|libcuda could not be opened`, []string{"no-libcuda"}},
		{`libcuda\.so(\.1)?: .*(wrong elf class|version)`, []string{"libcuda-duplicates"}},
		{`ld-musl|error relocating`, []string{"musl"}},
		{`malformed socket path: \d+ bytes|af_unix path too long|path too long`, []string{"path-too-long"}},
		{`its owner is gone|nobody is listening there|no such file or directory.*\.sock`, []string{"socket-dead"}},
		{`not a sock_seqpacket socket|protocol wrong type for socket|does not speak|unexpected record`, []string{"socket-foreign"}},
		{`directory is not safe for a socket`, []string{"socket"}},
		{`peer not admitted|stands for every user unknown`, []string{"uid-common", "uid-map"}},
		{`no space left on device.*shm|/dev/shm|shared memory \(shm\)`, []string{"shm"}},
		{`imex|fabric handle`, []string{"imex-channel"}},
		{`confidential comput`, []string{"confidential-computing"}},
		{`mps (control daemon|server|client)`, []string{"mps-directory"}},
		{`the peer took too long`, []string{"peer-silent"}},
		{`the context is lost`, []string{"context-lost"}},
		{`memory is on a device that is not visible`, []string{"gpu-hidden"}},
		{`pidfd_getfd\W+bad file descriptor`, []string{"owner-gone"}},
		{`driver version is insufficient`, []string{"libcuda-version"}},
		// PyTorch's.
		{`producer process has been terminated before all shared cuda tensors released`, []string{"owner-gone"}},
		{`producer process tried to deallocate over \d+ memory blocks`, []string{"consumers-hold"}},
		{`attempted to send cuda tensor received from another process|invalid device pointer`, []string{"torch-own"}},
		{`re-?initialize cuda in forked subprocess`, []string{"fork"}},
		{`cuda unknown error`, []string{"nvidia-uvm"}},
		{`(storagesharing|_share_cuda_).*(operation not supported|os call failed)|(operation not supported|os call failed).*storagesharing`, []string{"legacy-unsupported"}},
		{`(storagesharing|_share_cuda_).*invalid argument|invalid argument.*storagesharing`, []string{"legacy-kind"}},
		{`unable to open shared memory object`, []string{"fd-limit", "shm"}},
		// vLLM's, UCX's, NCCL's.
		{`custom_all_reduce.*invalid argument`, []string{"legacy-kind", "owner-gone"}},
		{`failed to open ipc mem handle.*element already exists`, []string{"already-open"}},
		{`attaching to shared memory segment.*no such file or directory`, []string{"shm-gone"}},
		{`posix_fallocate failed|failed to extend \S*shm|(shared memory segment|shm).*no space left on device`, []string{"shm"}},
		// The driver's checkpoints, and gVisor's.
		{`toggling cuda in process|cuda-checkpoint|cuda_plugin`, []string{"checkpoint"}},
		{`nvproxy.*unknown (control command|ioctl|allocation class)|gvisor|runsc|nvproxy`, []string{"gvisor"}},
	} {
		all = append(all, word{regexp.MustCompile(`(?i)` + w.pattern), w.causes})
	}
	return all
})

// Read returns the ids of the causes that the words of a line show, without a result of
// the driver. Those that the longest words show come first.
func Read(line string) (ids []string) {
	length := func(w word) int { return len(w.pattern.FindString(line)) }
	found := slices.Clone(words())
	slices.SortStableFunc(found, func(a, b word) int { return length(b) - length(a) })
	for _, w := range found {
		if length(w) == 0 {
			break
		}
		for _, id := range w.causes {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}
