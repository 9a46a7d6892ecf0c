package tests

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"

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
	return footprint{len(openFDs(fmt.Sprint(pid))), memory(t, pid, "VmRSS"), memory(t, pid, "VmSize")}
}

// TestFault14_Handoffs: ten thousand handoffs between two processes leave both
// as they were: descriptors, memory, address space, device memory. On a GPU,
// and with -short, fewer.
func TestFault14_Handoffs(t *testing.T) {
	cutest.Alone(t, countsMemory)
	const warmUp, chunks = 200, 2
	n := 10000
	switch {
	case testing.Short():
		n = 200
	case cutest.Kind() == cu.CUDA:
		n = 1000
	}
	s := newScene(t)
	producer := s.serving("-consumers", "0", "-size", "3MiB", "-chunk", "2MiB")
	producer.handOffs(s, warmUp)
	free := freeMemory(t)
	before := footprints(t, producer)
	producer.handOffs(s, n)
	// The last connection may still be closing.
	eventually(t, func() bool { return footprintOf(t, producer.pid()).fds <= before["producer"].fds }, "the producer keeps descriptors")
	after := footprints(t, producer)
	requireFree(t, free)
	s.consumer().succeeds()
	producer.signal(syscall.SIGTERM)
	producer.succeeds()

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
		if name == "producer" || !raceDetector() {
			require.Less(t, a.resident-b.resident, resident, "resident memory of the %s", name)
		}
		// Half of what is mapped for each.
		require.Less(t, a.addresses-b.addresses, n*chunks*int(2*mib)/2, "address space of the %s", name)
	}
}

// TestCloseLeavesNothingToTheCollector defends invariant 3: what Close gives
// back is not what the garbage collector would find in the end.
func TestCloseLeavesNothingToTheCollector(t *testing.T) {
	cutest.Alone(t, countsMemory)
	s := newScene(t)
	producer := s.serving("-consumers", "0", "-size", "3MiB", "-chunk", "2MiB")
	producer.handOffs(s, 1)
	free, fds := freeMemory(t), len(openFDs("self"))
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	producer.handOffs(s, 20)
	require.LessOrEqual(t, len(openFDs("self")), fds)
	require.GreaterOrEqual(t, freeMemory(t), free)
	producer.signal(syscall.SIGTERM)
	producer.succeeds()
}

// footprints looks at this process and the producer.
func footprints(t *testing.T, producer *process) map[string]footprint {
	t.Helper()
	debug.FreeOSMemory()
	return map[string]footprint{
		"consumer": footprintOf(t, os.Getpid()),
		"producer": footprintOf(t, producer.pid()),
	}
}

// handOffs attaches to the producer n times, and looks at the data now and
// then.
func (p *process) handOffs(s *scene, n int) {
	t := s.t
	t.Helper()
	for i := range n {
		att, err := s.attach(share.WithAnyDevice())
		require.NoError(t, err)
		if i%50 == 0 {
			requirePattern(t, att.Buffer().Device(), att.Buffer().Ptr(), 3*mib)
			p.out.forget()
		}
		report(t, att, nil)
		require.NoError(t, att.Close())
	}
}

// raceDetector reports whether this test was built with -race, which takes
// memory as it goes along. The programs never are.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
