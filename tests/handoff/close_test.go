package handoff

import (
	"syscall"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// TestFault11_CloseTwice: whatever can be closed can be closed again, by several
// at once, and gives back what it had once: another time would be misuse, for
// which the software driver fails the run and a GPU's crashes (D4).
func TestFault11_CloseTwice(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	closeTwice(t, s)
	if cutest.Kind() == cu.CUDA { // what its driver keeps from the first time on is nobody's leak
		s.Settle()
	}
	closeTwice(t, s)
}

func closeTwice(t *testing.T, s *programs.Scene) {
	producer := s.Serving("-consumers", "0")
	dev := cutest.Device(t)
	for _, c := range closers(t, s, dev) {
		t.Run(c.name, func(t *testing.T) {
			results := make(chan error)
			for range 8 {
				go func() { results <- c.close() }()
			}
			for range 8 {
				require.NoError(t, <-results)
			}
			require.NoError(t, c.close())
		})
	}
	producer.Signal(syscall.SIGTERM)
	producer.Wait() // it owes us no success: we left without a verdict
}

// A closer is a thing that can be closed.
type closer struct {
	name  string
	close func() error
}

// closers are one of each, in an order in which they can be closed.
func closers(t *testing.T, s *programs.Scene, dev *cu.Device) (all []closer) {
	t.Helper()
	add := func(name string, c interface{ Close() error }, err error) {
		require.NoError(t, err, name)
		all = append(all, closer{name, c.Close})
	}
	ctx := cutest.Context(t, dev)
	another, err := dev.PrimaryContext()
	add("context", another, err)
	stream, err := ctx.NewStream()
	add("stream", stream, err)
	event, err := ctx.NewEvent(cu.EventDefault)
	add("event", event, err)
	memory, err := ctx.Alloc(4096)
	add("memory", memory, err)
	host, err := ctx.AllocHost(4096, 0)
	add("pinned memory", host, err)
	graph, err := ctx.NewGraph()
	add("graph", graph, err)
	all = append(all, vmmClosers(t, dev)...)
	return append(all, shareClosers(t, s, dev)...)
}

func vmmClosers(t *testing.T, dev *cu.Device) (all []closer) {
	t.Helper()
	add := func(name string, c interface{ Close() error }, err error) {
		require.NoError(t, err, name)
		all = append(all, closer{name, c.Close})
	}
	handle, err := dev.CreateMemory(2*programs.Mib, cu.HandleFD)
	add("memory handle", handle, err)
	allocation, err := vmm.Create(dev, 2*programs.Mib)
	require.NoError(t, err)
	reservation, err := vmm.Reserve(dev.Driver(), 2*programs.Mib)
	require.NoError(t, err)
	mapping, err := reservation.Map(0, allocation)
	add("mapping", mapping, err)
	add("allocation", allocation, nil)
	add("reservation", reservation, nil)
	buf, err := vmm.New(dev, 3*programs.Mib)
	require.NoError(t, err)
	view, err := buf.NewView(cu.ReadOnly)
	add("view", view, err)
	add("buffer", buf, nil)
	return all
}

func shareClosers(t *testing.T, s *programs.Scene, dev *cu.Device) (all []closer) {
	t.Helper()
	add := func(name string, c interface{ Close() error }, err error) {
		require.NoError(t, err, name)
		all = append(all, closer{name, c.Close})
	}
	att, err := s.Attach()
	add("attachment", att, err)
	buf, err := vmm.New(dev, programs.Mib)
	require.NoError(t, err)
	srv, err := share.Listen(s.Socket + "2")
	require.NoError(t, err)
	prepared, err := srv.Prepare("data", buf, share.ReadOnly)
	add("prepared offer", prepared, err)
	add("server", srv, nil)
	add("offered buffer", buf, nil)
	a, b, err := sock.NewPair()
	add("connection", a, err)
	add("its peer", b, nil)
	l, err := sock.Listen(s.Socket + "3")
	add("listener", l, err)
	_, files, err := buf.Export()
	require.NoError(t, err)
	return append(all, closer{"descriptors", func() error { return sock.CloseFiles(files) }})
}
