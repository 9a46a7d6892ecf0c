package load

import (
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
)

// A footprint is what a process uses.
type footprint struct {
	fds, resident, addresses int
}

func footprintOf(t testing.TB, pid int) footprint {
	t.Helper()
	return footprint{len(programs.OpenFDs(fmt.Sprint(pid))), programs.Memory(t, pid, "VmRSS"), programs.Memory(t, pid, "VmSize")}
}

// TestFault14_Handoffs: ten thousand handoffs between two processes leave both
// as they were: descriptors, memory, address space, device memory. On a GPU,
// and with -short, fewer.
func TestFault14_Handoffs(t *testing.T) {
	cutest.Alone(t, programs.CountsMemory)
	const warmUp, chunks = 200, 2
	n := 10000
	switch {
	case testing.Short():
		n = 200
	case cutest.Kind() == cu.CUDA:
		n = 1000
	}
	s := programs.NewScene(t)
	producer := s.Serving("-consumers", "0", "-size", "3MiB", "-chunk", "2MiB")
	handOffs(producer, s, warmUp)
	free := programs.FreeMemory(t)
	before := footprints(t, producer)
	handOffs(producer, s, n)
	// The last connection may still be closing.
	programs.Eventually(t, func() bool { return footprintOf(t, producer.PID()).fds <= before["producer"].fds }, "the producer keeps descriptors")
	after := footprints(t, producer)
	programs.RequireFree(t, free)
	s.Consumer().Succeeds()
	producer.Signal(syscall.SIGTERM)
	producer.Succeeds()

	// Far less than a page for each, but for the code that qemu-user translates
	// meanwhile: then far less than a chunk.
	resident := 8 << 20
	if cutest.Emulated() {
		resident = 64 << 20
	}
	for name := range before {
		b, a := before[name], after[name]
		t.Logf("%s before %d handoffs: %+v, after: %+v", name, n, b, a)
		require.LessOrEqual(t, a.fds, b.fds, "descriptors of the %s", name)
		if name == "producer" || !cutest.RaceDetector {
			require.Less(t, a.resident-b.resident, resident, "resident memory of the %s", name)
		}
		// Half of what is mapped for each.
		require.Less(t, a.addresses-b.addresses, n*chunks*int(2*programs.MiB)/2, "address space of the %s", name)
	}
}

// footprints looks at this process and the producer.
func footprints(t *testing.T, producer *programs.Process) map[string]footprint {
	t.Helper()
	debug.FreeOSMemory()
	return map[string]footprint{
		"consumer": footprintOf(t, os.Getpid()),
		"producer": footprintOf(t, producer.PID()),
	}
}

// handOffs attaches to the producer n times, and looks at the data now and
// then.
func handOffs(p *programs.Process, s *programs.Scene, n int) {
	t := s.T
	t.Helper()
	for i := range n {
		att, err := s.Attach(share.AttachOptions{AnyDevice: true})
		require.NoError(t, err)
		if i%50 == 0 {
			programs.RequirePattern(t, att.Buffer().Device(), att.Buffer().Ptr(), 3*programs.MiB)
			p.Out.Forget()
		}
		programs.Report(t, att, nil)
		require.NoError(t, att.Close())
	}
}
