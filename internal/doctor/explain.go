package doctor

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/hints"
)

// A Meaning is what a code or a line of a log means when memory is shared.
type Meaning struct {
	Call   string        `json:"call,omitempty"`   // the driver's function, where it is named
	Result string        `json:"result,omitempty"` // its result, where there is one
	Hints  []string      `json:"hints,omitempty"`  // those of gpufd's errors
	Causes []hints.Cause `json:"causes,omitempty"` // possible causes, the likeliest first
}

// Named reports whether anything is known.
func (m Meaning) Named() bool { return len(m.Causes) > 0 || len(m.Hints) > 0 }

// Explain returns what a result of the driver means when memory is shared. text is a number,
// a name with or without CUDA_ERROR_, a line that holds either, or telling words, or the id of
// a row or cause.
func Explain(text string) Meaning {
	if c, ok := hints.Find(strings.ToLower(strings.TrimSpace(text))); ok {
		return Meaning{Causes: []hints.Cause{c}}
	}
	calls, ids := callsIn(text), hints.Read(text)
	result := resultIn(text, len(calls) > 0 || len(ids) == 0) // the system says "Operation not permitted", too
	op := callOf(calls, result)
	m := Meaning{Call: op}
	if result != 0 {
		m.Result = result.String() + " (" + strconv.Itoa(int(result)) + ")"
		for _, id := range hints.Of(op, result) {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		m.Hints = hintsOf(op, result)
	}
	for _, id := range ids {
		if c, ok := hints.Find(id); ok {
			m.Causes = append(m.Causes, c)
		}
	}
	return m
}

// hintsOf returns the library's hints for that result of the function, or of all functions.
func hintsOf(op string, r sys.CUresult) (all []string) {
	calls := []hints.Call{{Op: op, Result: r}}
	if op == "" {
		calls = hints.Calls(r)
	}
	for _, c := range calls {
		text := hints.For(c.Op, r, false)
		if c.Op != "" && text != "" {
			text = c.Op + ": " + text
		}
		if text != "" && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// runtimeCalls are the functions of the runtime API that end in one of the driver.
var runtimeCalls = map[string]string{
	"cudaipcopenmemhandle": "cuIpcOpenMemHandle", "ipcopenmemhandle": "cuIpcOpenMemHandle",
	"cudaipcgetmemhandle": "cuIpcGetMemHandle", "ipcgetmemhandle": "cuIpcGetMemHandle",
	"cudaipcopeneventhandle": "cuIpcOpenEventHandle", "cudaipcgeteventhandle": "cuIpcGetEventHandle",
	"cudamempoolimportfromshareablehandle": "cuMemImportFromShareableHandle",
}

var callPattern = regexp.MustCompile(`(?i)\b(cu(?:da)?(?:Ipc|Mem|Init|Ctx|Device|Event)\w*|ipc(?:Open|Get)MemHandle)\b`)

// callsIn returns the driver's functions that a line names, without their versions.
func callsIn(text string) (calls []string) {
	for _, name := range callPattern.FindAllString(text, -1) {
		name = strings.TrimSuffix(name, "_v2")
		if of, ok := runtimeCalls[strings.ToLower(name)]; ok {
			calls = append(calls, of)
		}
		for _, s := range sys.Symbols() {
			if s = strings.TrimSuffix(s, "_v2"); strings.EqualFold(s, name) {
				calls = append(calls, s)
				break
			}
		}
	}
	return calls
}

// callOf returns the one of calls that most likely had that result: one for which it has a
// special meaning, else the first, else "".
func callOf(calls []string, r sys.CUresult) string {
	for _, op := range calls {
		if slices.ContainsFunc(hints.Calls(r), func(c hints.Call) bool { return c.Op == op }) {
			return op
		}
	}
	return strings.Join(calls[:min(len(calls), 1)], "")
}

// names are the results by their names without CUDA_ERROR_, and by the runtime API's names
// for those that sharing meets.
var names = sync.OnceValue(func() map[string]sys.CUresult {
	all := map[string]sys.CUresult{
		"DEVICEUNINITIALIZED": sys.CUDA_ERROR_INVALID_CONTEXT, "MAPBUFFEROBJECTFAILED": sys.CUDA_ERROR_MAP_FAILED,
		"INVALIDRESOURCEHANDLE": sys.CUDA_ERROR_INVALID_HANDLE, "MEMORYALLOCATION": sys.CUDA_ERROR_OUT_OF_MEMORY,
		"DEVICESUNAVAILABLE": sys.CUDA_ERROR_DEVICE_UNAVAILABLE, "INITIALIZATIONERROR": sys.CUDA_ERROR_NOT_INITIALIZED,
	}
	for r := sys.CUresult(1); r <= sys.CUDA_ERROR_UNKNOWN; r++ {
		if name, ok := strings.CutPrefix(r.String(), "CUDA_ERROR_"); ok {
			all[strings.ReplaceAll(name, "_", "")] = r
		}
	}
	return all
})

var (
	namePattern   = regexp.MustCompile(`(?i)\b(?:CUDA_ERROR_|cudaError)(\w+)`)
	wholeName     = regexp.MustCompile(`^[A-Za-z_]+$`)
	numberPattern = regexp.MustCompile(`(?i)(?:error|failure|failed|with|code|result|return value|ret|status|->)\W{0,5}(?:\(|=)?\s*(\d{1,3})\b|\b(\d{1,3}) vs\. 0\b|\((\d{1,3})\)`)
)

// phrases are what the driver says of results that sharing meets (cuGetErrorString).
var phrases = []struct {
	words  string
	result sys.CUresult
}{
	{"invalid device context", sys.CUDA_ERROR_INVALID_CONTEXT},
	{"mapping of buffer object failed", sys.CUDA_ERROR_MAP_FAILED},
	{"invalid device ordinal", sys.CUDA_ERROR_INVALID_DEVICE},
	{"invalid resource handle", sys.CUDA_ERROR_INVALID_HANDLE},
	{"devices are busy or unavailable", sys.CUDA_ERROR_DEVICE_UNAVAILABLE},
	{"is/are busy or unavailable", sys.CUDA_ERROR_DEVICE_UNAVAILABLE},
	{"system not yet initialized", sys.CUDA_ERROR_SYSTEM_NOT_READY},
	{"unsupported display driver", sys.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH},
	{"no cuda-capable device", sys.CUDA_ERROR_NO_DEVICE},
	{"peer access is not supported", sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED},
	{"operation not supported", sys.CUDA_ERROR_NOT_SUPPORTED},
	{"operation not permitted", sys.CUDA_ERROR_NOT_PERMITTED},
	{"illegal memory access", sys.CUDA_ERROR_ILLEGAL_ADDRESS},
	{"out of memory", sys.CUDA_ERROR_OUT_OF_MEMORY},
	{"unknown error", sys.CUDA_ERROR_UNKNOWN},
	{"invalid argument", sys.CUDA_ERROR_INVALID_VALUE},
}

// resultIn returns the result that a text names: by name, by the driver's words if those are
// trusted, or by number.
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
	for _, p := range phrases {
		if trusted && strings.Contains(strings.ToLower(text), p.words) {
			return p.result
		}
	}
	for _, m := range numberPattern.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[1] + m[2] + m[3])
		if r := known(n); r != 0 {
			return r
		}
	}
	return 0
}

func plainName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "_", "")) }

// known returns the result of that number, or 0.
func known(n int) sys.CUresult {
	r := sys.CUresult(n)
	if n <= 0 || !strings.HasPrefix(r.String(), "CUDA_ERROR_") {
		return 0
	}
	return r
}
