package tests

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// A software device is small here; what the producers want is there, but for
// the hoarder.
const smallDevice = "GPUFD_SOFT_MEMORY=64MiB"

var wanted = map[cu.Kind]string{cu.Soft: "32MiB", cu.CUDA: "4GiB"}[cutest.Kind()]

// hoarded has a process take the memory, and returns it and a function that
// starts producers.
func (s *scene) hoarded() (hoarder *process, producer func(args ...string) *process) {
	s.t.Helper()
	cutest.Alone(s.t, "it takes the device's memory")
	hoarder = s.child(nil, childHoards, []string{smallDevice})
	hoarder.waitLine("holding")
	return hoarder, func(args ...string) *process {
		return s.start("producer", []string{smallDevice}, append([]string{"-size", wanted}, args...)...)
	}
}

// memoryHint is where the driver's error says to look for who has the memory.
func memoryHint() string {
	if cutest.Kind() == cu.Soft {
		return "GPUFD_SOFT_DIR"
	}
	return "nvidia-smi"
}

// TestFault61_DeviceIsFull: a producer that does not wait fails at once, 1; one
// that does says so, and fails when the time is over, 4.
func TestFault61_DeviceIsFull(t *testing.T) {
	s := newScene(t)
	hoarder, producer := s.hoarded()
	producer().fails(1, "CUDA_ERROR_OUT_OF_MEMORY (2)", memoryHint(), "wait for it with --wait")
	for _, chunk := range [][]string{nil, {"-chunk", "2MiB"}} {
		began := time.Now()
		p := producer(append(chunk, "-wait", "300ms")...)
		p.fails(4, " did not become free in ", " bytes free: context deadline exceeded", "CUDA_ERROR_OUT_OF_MEMORY (2)", "wait longer with --wait")
		require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
		require.Len(t, find(p, "Waiting for device memory, for 300ms at most"), 1, p.dump())
		require.Empty(t, find(p, "Waiting for consumer"))
	}
	require.Empty(t, s.listing(), "nobody listens any more")
	hoarder.kill()
}

// TestFault61_MemoryComesFree: the process that has the memory is killed, and
// the producer that waits for it goes on. Its consumer was there before, and
// has more patience than for one step.
func TestFault61_MemoryComesFree(t *testing.T) {
	s := newScene(t)
	hoarder, producer := s.hoarded()
	p := producer("-wait", "1m")
	p.waitLine("Waiting for device memory, for 1m0s at most")
	consumer := s.start("consumer", []string{smallDevice}, "-timeout", "10s")
	consumer.waitLine("Connected to producer")
	if cutest.Kind() == cu.Soft { // longer than the consumer's patience for a silent one
		time.Sleep(11 * time.Second)
	}
	require.Empty(t, find(p, "Created physical memory"))
	hoarder.kill()
	consumer.succeeds()
	p.succeeds()
	require.Regexp(t, `  durations: .*\bwait \d`, find(p, "  durations")[0])
}

// TestFault61_WaitIsInterrupted: a signal ends the wait.
func TestFault61_WaitIsInterrupted(t *testing.T) {
	s := newScene(t)
	hoarder, producer := s.hoarded()
	p := producer("-wait", "1h")
	p.waitLine("Waiting for device memory, for 1h0m0s at most")
	p.signal(syscall.SIGTERM)
	p.fails(1, "interrupted")
	hoarder.kill()
}

// TestWaitUsage: a wait is a duration.
func TestWaitUsage(t *testing.T) {
	newScene(t).producer("-wait", "-1s").fails(2, "-wait -1s: want 0 or more")
	newScene(t).producer("-wait", "5").fails(2, "-wait")
}
