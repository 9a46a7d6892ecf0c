package vmm

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// lastGeneration is the last one that this process gave out.
var lastGeneration atomic.Uint64

// NewGeneration returns a number for memory of another kind that is shared beside
// buffers, by the rules of [Descriptor].
func NewGeneration() uint64 { return newGeneration() }

// newGeneration returns a number for a buffer of a new shape. It is larger than
// that of every shape made before on this machine since it started, in whichever
// process, so that what an earlier run left behind can be told from what this one
// made. A count would begin again with every process; nanoseconds since the machine
// started do not, and unlike the time of day nobody sets them back. (In a time
// namespace they are offset: processes of two such are not to be compared.)
func newGeneration() uint64 {
	for {
		last := lastGeneration.Load()
		next := max(last+1, sinceBoot())
		if lastGeneration.CompareAndSwap(last, next) {
			return next
		}
	}
}

// sinceBoot is in nanoseconds, those of a suspended machine included.
func sinceBoot() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // fails for clocks only that do not exist
	return uint64(t.Nano())
}
