package doctor

import (
	"cmp"
	_ "embed"
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

//go:embed results.txt
var resultLines string

// words are the driver's own for each result (cuGetErrorString). A line of results.txt is a result's number, name and words.
var words = func() map[sys.CUresult]string {
	all := map[sys.CUresult]string{}
	for line := range strings.Lines(resultLines) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 3)
		n, _ := strconv.Atoi(f[0])
		all[sys.CUresult(n)] = f[2]
	}
	return all
}()
