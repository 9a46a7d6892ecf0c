package gpumem

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// lastGeneration is the last one that this process gave out.
var lastGeneration atomic.Uint64

// NewGeneration returns a number for memory of a new shape. It is larger than
// that of every shape made before on this machine since it started, in any
// process, so that peers can tell an earlier run's memory from this one's. A
// count would begin again in every process. Nanoseconds since the machine started
// do not, and unlike the time of day nobody sets them back. (Time namespaces
// shift them: numbers from two such cannot be compared.)
func NewGeneration() uint64 {
	for {
		last := lastGeneration.Load()
		next := max(last+1, sinceBoot())
		if lastGeneration.CompareAndSwap(last, next) {
			return next
		}
	}
}

// sinceBoot returns nanoseconds since the machine started, including those it was
// suspended.
func sinceBoot() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // fails only for clocks that do not exist
	return uint64(t.Nano())
}
