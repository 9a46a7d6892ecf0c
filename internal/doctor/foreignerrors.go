package doctor

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// others are what a line may speak of that is no result of the driver, though it has a number
// or words like one.
var others = []struct {
	pattern *regexp.Regexp
	what    string
}{
	{regexp.MustCompile(`:\d+ -> \d+\b|^\d+ -> \d+$`), "NCCL's trace of its own results (1: a call of CUDA failed, 2: one of the system, 3: NCCL itself): the line with WARN before it says what failed"},
	{regexp.MustCompile(`(?i)\bHTTP\S*\W.{0,20}\b[1-5]\d\d\b`), "a status of HTTP"},
	{regexp.MustCompile(`(?i)\bexit(?:ed|code)?\b.{0,12}\b\d{1,3}\b|\*\*\* \[.*\] Error \d+`), "the exit status of a process: what that process printed says why"},
}

// otherIn says what a text is about that names no result of the driver, or "".
func otherIn(text string) string {
	if e := errnoIn(text); e != 0 {
		return fmt.Sprintf("%s (%d), %v: an error of the system, not a result of the driver", unix.ErrnoName(e), int(e), e)
	}
	for _, o := range others {
		if o.pattern.MatchString(text) {
			return o.what
		}
	}
	return ""
}

// errnoIn returns the error of the system that a text names, by number or by the longest words,
// or 0.
func errnoIn(text string) (found unix.Errno) {
	if m := errnoWord.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1])
		if e := unix.Errno(n); unix.ErrnoName(e) != "" {
			return e
		}
	}
	lower, longest := strings.ToLower(text), 0
	for e := unix.Errno(1); e < 134; e++ {
		if said := e.Error(); unix.ErrnoName(e) != "" && len(said) > longest && strings.Contains(lower, said) {
			found, longest = e, len(said)
		}
	}
	return found
}
