// Package fdtrace records where things were made, so that a test can say which
// function left one behind. A program pays one atomic load for each descriptor
// that it makes.
package fdtrace

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
)

var watcher atomic.Pointer[func(*os.File)]

// File is [os.NewFile] for a descriptor that the caller has just made. It tells
// the function of [Watch].
func File(fd int, name string) *os.File {
	file := os.NewFile(uintptr(fd), name)
	if f := watcher.Load(); f != nil {
		(*f)(file)
	}
	return file
}

// Watch calls f with each file made from now on, on the goroutine that makes it.
func Watch(f func(*os.File)) { watcher.Store(&f) }

// depth is how many frames of a stack are kept: test helpers, hooks and the
// crossing lie on top of each other.
const depth = 48

// Here returns the stack of its caller, to be looked up when it is printed.
func Here() []uintptr {
	var pcs [depth]uintptr
	return slices.Clone(pcs[:runtime.Callers(2, pcs[:])])
}

// Frames looks up a stack, without the frames below every test and goroutine. It
// ignores zeros at its end.
func Frames(stack []uintptr) (found []runtime.Frame) {
	frames := runtime.CallersFrames(stack)
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); f.Function != "" && !slices.Contains(bottom, f.Function) {
			found = append(found, f)
		}
	}
	return found
}

var bottom = []string{"runtime.goexit", "runtime.main", "testing.tRunner"}

// Past returns what called the first of frames whose function begins with prefix:
// where something was made, without how. It returns all frames if none does.
func Past(frames []runtime.Frame, prefix string) []runtime.Frame {
	i := slices.IndexFunc(frames, func(f runtime.Frame) bool { return strings.HasPrefix(f.Function, prefix) })
	return frames[i+1:]
}

// Print prints each frame on two lines, as the runtime does.
func Print(frames []runtime.Frame) string {
	var b strings.Builder
	for _, f := range frames {
		fmt.Fprintf(&b, "    %s\n        %s:%d\n", f.Function, f.File, f.Line)
	}
	return b.String()
}
