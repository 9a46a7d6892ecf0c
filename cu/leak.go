package cu

import (
	"fmt"
	"os"
	"runtime"

	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
)

// A Leak is something that was lost before it was closed. The garbage collector
// must not end it, because a kernel may still use it.
type Leak struct {
	What  string // e.g. "mapping of 2097152 bytes at 0x7f2c00000000"
	Stack Stack  // where it was made
}

// String describes the leak on several lines.
func (l Leak) String() string {
	return fmt.Sprintf("gpufd: %s was lost without Close; it was made at\n%s", l.What, l.Stack)
}

// A Stack records where something was made. Taking one takes 1 to 10 microseconds; names are
// looked up only when it is printed.
type Stack [16]uintptr

// Here returns the stack of its caller's caller, less skip frames.
func Here(skip int) (s Stack) {
	runtime.Callers(skip+3, s[:])
	return s
}

// String prints each frame on two lines: its function, and file and line.
func (s Stack) String() string { return fdtrace.Print(fdtrace.Frames(s[:])) }

// ReportLeak passes l to the driver's leak handler.
func (d *Driver) ReportLeak(l Leak) { d.leak(l) }

func printLeak(l Leak) { fmt.Fprint(os.Stderr, l) }
