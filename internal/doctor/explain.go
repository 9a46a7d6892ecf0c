package doctor

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/advice"
)

// A Meaning is what a code or a line of a log means when memory is shared.
type Meaning struct {
	Call   string         `json:"call,omitempty"`   // the driver's function, where it is named
	Result string         `json:"result,omitempty"` // its result, where there is one
	Words  string         `json:"words,omitempty"`  // the driver's for that result
	Other  string         `json:"other,omitempty"`  // what it is, where it is no result of the driver
	Hints  []string       `json:"hints,omitempty"`  // those of gpufd's errors
	Causes []advice.Cause `json:"causes,omitempty"` // possible causes, the likeliest first
}

// Known reports whether anything is known.
func (m Meaning) Known() bool { return len(m.Causes) > 0 || m.Result != "" || m.Other != "" }

// Explain returns what a result of the driver means when memory is shared. text is a number,
// a name with or without CUDA_ERROR_, the driver's words, a line that holds one of these, or
// telling words, or the id of a row or cause.
func Explain(text string) Meaning {
	if c, ok := advice.Find(strings.ToLower(strings.TrimSpace(text))); ok {
		return Meaning{Causes: []advice.Cause{c}}
	}
	calls, ids := callsIn(text), advice.Read(text)
	result := resultIn(text, len(calls) > 0 || len(ids) == 0) // the system says "Operation not permitted", too
	op := callOf(calls, result)
	m := Meaning{Call: op}
	if result == 0 {
		m.Other = otherIn(text)
	} else {
		m.Result, m.Words = result.String()+" ("+strconv.Itoa(int(result))+")", words[result]
		if op != "" || len(ids) == 0 {
			m.Hints, ids = hintsOf(op, result), append(ids, advice.CausesOf(op, result)...)
		} else if h := advice.For("", result, false); h != "" { // the line's words say more than what any function may mean
			m.Hints = []string{h}
		}
	}
	for _, id := range ids {
		c, ok := advice.Find(id)
		if ok && !slices.ContainsFunc(m.Causes, func(d advice.Cause) bool { return d.ID == id }) {
			m.Causes = append(m.Causes, c)
		}
	}
	return m
}

// hintsOf returns the library's hints for that result of the function, or of all functions.
func hintsOf(op string, r sys.CUresult) (all []string) {
	calls := []advice.Call{{Op: op, Result: r}}
	if op == "" {
		calls = advice.Calls(r)
	}
	for _, c := range calls {
		text := advice.For(c.Op, r, false)
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
	"cudaipcclosememhandle": "cuIpcCloseMemHandle", "ipcclosememhandle": "cuIpcCloseMemHandle",
	"cudamempoolimportfromshareablehandle": "cuMemImportFromShareableHandle",
	"cudagetdevicecount":                   "cuInit", "cudasetdevice": "cuDevicePrimaryCtxRetain",
}

var callPattern = regexp.MustCompile(`(?i)\b(cu(?:da)?(?:Ipc|Mem|Init|Ctx|Device|Event|Checkpoint|Get|Set)\w*|ipc(?:Open|Get|Close)MemHandle)\b`)

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
		if slices.ContainsFunc(advice.Calls(r), func(c advice.Call) bool { return c.Op == op }) {
			return op
		}
	}
	return strings.Join(calls[:min(len(calls), 1)], "")
}
