package cutest

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/internal/testenv/handles"
	"github.com/gpufd/gpufd/internal/testenv/leak"
)

// table holds what the drivers of [Open] gave out.
var table handles.Table

// A State is what a process holds at one time, for [Left] to compare with.
type State struct {
	process *leak.State
	handles int
}

// Now returns the present state.
func Now() *State { return &State{leak.Now(), table.Mark()} }

// Left lists what is there now and was not there before, and where it was made. It is
// empty at the end of a good test.
//
//   - Descriptors, by what they refer to. Those that gpufd made come with the
//     stack that made them; those that libcuda opens for itself do not count.
//   - Goroutines, with their stacks and who created them.
//   - Handles, reservations, mappings and memory that the drivers of [Open] gave
//     out and did not get back, with the stack that called the driver. What
//     ends with its context is gone with its last reference.
//   - Device memory, as the software driver accounts for it in all processes.
//   - What the garbage collector found lost ([cu.WithLeakHandler]).
//   - Misuse that the software driver noticed.
//
// Left gives what is about to end a few seconds. It lists what only the garbage
// collector would give back.
func Left(before *State) []string {
	left := leftHere(before, softMemory)
	if Kind() == cu.Soft {
		left = append(left, soft.Misuses()...)
	}
	return left
}

// leftHere is Left for this process alone.
func leftHere(before *State, others ...func() []string) []string {
	left := before.process.Left(append(others, func() []string { return table.Since(before.handles) })...)
	collect()
	for _, l := range TakeLeaks() {
		left = append(left, l.String())
	}
	return left
}

// collect collects garbage, and waits for the cleanups of what was lost.
func collect() {
	for range 3 {
		done := make(chan struct{})
		runtime.AddCleanup(new(chan struct{}), func(done chan struct{}) { close(done) }, done)
		runtime.GC()
		select {
		case <-done:
		case <-time.After(time.Second):
		}
	}
}

// softMemory lists the devices of the software driver that have memory in use.
func softMemory() (used []string) {
	if Kind() != cu.Soft {
		return nil
	}
	drv, err := open() // its references do not count
	if err != nil {
		return []string{err.Error()}
	}
	for _, dev := range drv.Devices() {
		ctx, err := dev.PrimaryContext()
		if err != nil {
			return append(used, err.Error())
		}
		free, total, err := ctx.MemInfo()
		_ = ctx.Close()
		if err != nil || free != total {
			used = append(used, fmt.Sprintf("%d bytes of device %d are taken (error: %v)", total-free, dev.Ordinal(), err))
		}
	}
	return used
}

// Descriptors counts the process's open descriptors by what they refer to,
// without numbers, so that one replaced by another of its kind counts as the
// same. It leaves out what libcuda opens for itself.
func Descriptors() map[string]int { return leak.OpenFDs().Kinds() }

var (
	mu    sync.Mutex
	leaks []cu.Leak
)

func keep(l cu.Leak) {
	mu.Lock()
	defer mu.Unlock()
	leaks = append(leaks, l)
}

// TakeLeaks returns the leaks that the garbage collector reported since the last
// call and forgets them, for tests that leak on purpose.
func TakeLeaks() []cu.Leak {
	mu.Lock()
	defer mu.Unlock()
	taken := leaks
	leaks = nil
	return taken
}
