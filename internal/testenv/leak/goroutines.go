package leak

import (
	"runtime"
	"slices"
	"strings"
)

// background are the functions of goroutines that may stay: those that nobody can
// end, and those that end by themselves.
var background = []string{
	"os/signal.loop",                                 // for ever, from the first signal.Notify on
	"runtime.ensureSigM.func1",                       // likewise
	"runtime.runFinalizers",                          // seen only while it runs one
	"runtime.runCleanups",                            // likewise
	"github.com/gpufd/gpufd/cu/soft.(*machine).work", // serves a stream while it has work
}

// goroutines returns the stacks of all goroutines but the caller's, by number.
func goroutines() map[string]string {
	buf := make([]byte, 1<<16)
	n := runtime.Stack(buf, true)
	for n == len(buf) {
		buf = make([]byte, 2*len(buf))
		n = runtime.Stack(buf, true)
	}
	all := map[string]string{}
	for _, text := range strings.Split(strings.TrimSpace(string(buf[:n])), "\n\n")[1:] { // the first is the caller's
		id, _, _ := strings.Cut(strings.TrimPrefix(text, "goroutine "), " ")
		all[id] = text
	}
	return all
}

// newGoroutines lists the goroutines that were not there before, with their
// stacks.
func newGoroutines(before map[string]string) (left []string) {
	for id, text := range goroutines() {
		if _, old := before[id]; !old && !isBackground(text) {
			left = append(left, "a goroutine runs that did not before:\n    "+strings.ReplaceAll(text, "\n", "\n    ")+"\n")
		}
	}
	slices.Sort(left)
	return left
}

func isBackground(text string) bool {
	return slices.ContainsFunc(background, func(f string) bool { return strings.Contains(text, "\n"+f+"(") })
}
