package handoff

import (
	"syscall"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// A software device is small here; what the producers want is there, but for
// the hoarder.
const smallDevice = "GPUFD_SOFT_MEMORY=64MiB"

var wanted = map[cu.Kind]string{cu.Soft: "32MiB", cu.CUDA: "4GiB"}[cutest.Kind()]

// hoarded starts a process that takes the memory of its devices, which env gives to others.
func hoarded(s *programs.Scene) (hoarder *programs.Process, env []string) {
	s.T.Helper()
	cutest.Alone(s.T, "it takes the device's memory")
	env = append(programs.OwnDevices(s.T), smallDevice)
	hoarder = s.Child(nil, childHoards, env)
	hoarder.WaitLine("holding")
	return hoarder, env
}

// memoryHint is the word in the driver's error that says where to look for the memory's users.
func memoryHint() string {
	if cutest.Kind() == cu.Soft {
		return "GPUFD_SOFT_DIR"
	}
	return "nvidia-smi"
}

// TestFault61_DeviceIsFull: a producer that does not wait fails at once, 1; one
// that does says so, and fails when the time is over, 4.
func TestFault61_DeviceIsFull(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	hoarder, env := hoarded(s)
	s.Start("producer", env, "-size", wanted).Fails(1, "CUDA_ERROR_OUT_OF_MEMORY (2)", memoryHint(), "wait for it with --wait")
	for _, chunk := range [][]string{nil, {"-chunk", "2MiB"}} {
		began := time.Now()
		p := s.Start("producer", env, append(chunk, "-size", wanted, "-wait", "300ms")...)
		p.Fails(4, " did not become free in ", " bytes free: context deadline exceeded", "CUDA_ERROR_OUT_OF_MEMORY (2)", "wait longer with --wait")
		require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
		require.Len(t, programs.Find(p, "Waiting for device memory, for 300ms at most"), 1, p.Dump())
		require.Empty(t, programs.Find(p, "Waiting for consumer"))
	}
	require.Empty(t, s.Listing(), "nobody listens any more")
	hoarder.Kill()
}

// TestFault61_MemoryComesFree: the process that has the memory is killed, and
// the producer that waits for it goes on. Its consumer was there before, and
// has more patience than for one step.
func TestFault61_MemoryComesFree(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	hoarder, env := hoarded(s)
	p := s.Start("producer", env, "-size", wanted, "-wait", "1m")
	p.WaitLine("Waiting for device memory, for 1m0s at most")
	consumer := s.Start("consumer", env, "-timeout", "3s")
	consumer.WaitLine("Connected to producer")
	if cutest.Kind() == cu.Soft { // longer than the consumer's patience for a silent one
		time.Sleep(4 * time.Second)
	}
	require.Empty(t, programs.Find(p, "Created physical memory"))
	hoarder.Kill()
	consumer.Succeeds()
	p.Succeeds()
	require.Regexp(t, `  durations: .*\bwait \d`, programs.Find(p, "  durations")[0])
}

// TestFault61_WaitIsInterrupted: a signal ends the wait.
func TestFault61_WaitIsInterrupted(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	hoarder, env := hoarded(s)
	p := s.Start("producer", env, "-size", wanted, "-wait", "1h")
	p.WaitLine("Waiting for device memory, for 1h0m0s at most")
	p.Signal(syscall.SIGTERM)
	p.Fails(1, "interrupted")
	hoarder.Kill()
}
