package kernels_test

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/kernels"
	"github.com/gpufd/gpufd/vmm"
)

// lostSize is how much memory is lost: two granules.
const lostSize = 4 << 20

// TestFault15_MemoryLostWhileAKernelUsesIt: the last reference to memory goes while
// a kernel that was given it waits for its turn, and the garbage collector takes
// it. It stays where it is: what the kernel writes is right, nobody else gets the
// address, and the memory returns with its context, or whoever the driver's leak
// handler told gives it back.
func TestFault15_MemoryLostWhileAKernelUsesIt(t *testing.T) {
	for name, c := range map[string]struct {
		make func(*cu.Context) (p cu.DevicePtr, launch func(*cu.Function, *cu.Stream) error, gone <-chan struct{})
		end  func(*testing.T, *cu.Device, cu.DevicePtr) // gives it back, unless its context does
	}{"memory": {loseMemory, func(*testing.T, *cu.Device, cu.DevicePtr) {}}, "buffer": {loseBuffer, giveBackBuffer}} {
		t.Run(name, func(t *testing.T) {
			dev := cutest.Device(t)
			launchOnce(t, dev)
			free := cutest.FreeMemory(t, dev)
			ctx := ok(dev.PrimaryContext())(t)
			mod := ok(ctx.LoadModule([]byte(kernels.Pattern)))(t)
			fill := ok(mod.Function("pattern_fill"))(t)
			s, others, word := newStream(t, ctx), newStream(t, ctx), zeroed(t, ctx, 4)

			require.NoError(t, fill.Launch(s, cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 1}}, word, uint64(0), uint64(0), uint32(0))) // loads it
			p, launch, gone := c.make(ctx)
			held := cutest.FreeMemory(t, dev)
			begin := func() error { return others.WriteValue32(word, 1, cu.WriteDefault) }
			late := time.AfterFunc(time.Minute, func() { _ = begin() }) // so that a failure ends
			defer late.Stop()
			require.NoError(t, s.WaitValue32(word, 1, cu.WaitEQ))
			require.NoError(t, launch(fill, s))
			collected(t, gone)
			require.LessOrEqual(t, cutest.FreeMemory(t, dev), held, "it has not been given back")
			for range 4 { // a new allocation gets other memory
				zeroed(t, ctx, lostSize)
			}
			require.NoError(t, begin())
			require.NoError(t, s.Synchronize(soon(t)))

			got := make([]byte, lostSize)
			require.NoError(t, errors.Join(cu.CopyToHostAsync(others, got, p), others.Synchronize(t.Context())))
			require.Zero(t, pattern.Check(got, 0, 15))
			c.end(t, dev, p)
			require.NoError(t, ctx.Close())
			require.Eventually(t, func() bool { runtime.GC(); return cutest.FreeMemory(t, dev) > free-lostSize },
				30*time.Second, time.Millisecond, "the memory returns")
		})
	}
}

// launchOnce makes a stream wait and runs a kernel. After the first time a GPU's
// driver keeps some memory for that, which is not a leak.
func launchOnce(t *testing.T, dev *cu.Device) {
	t.Helper()
	ctx := ok(dev.PrimaryContext())(t)
	mod := ok(ctx.LoadModule([]byte(kernels.Pattern)))(t)
	fill := ok(mod.Function("pattern_fill"))(t)
	s, p := newStream(t, ctx), zeroed(t, ctx, lostSize)
	require.NoError(t, s.WriteValue32(p, 1, cu.WriteDefault))
	require.NoError(t, s.WaitValue32(p, 1, cu.WaitEQ))
	require.NoError(t, launchFill(fill, s, p))
	require.NoError(t, s.Synchronize(soon(t)))
	require.NoError(t, ctx.Close())
}

func loseMemory(ctx *cu.Context) (cu.DevicePtr, func(*cu.Function, *cu.Stream) error, <-chan struct{}) {
	m, err := ctx.Alloc(lostSize)
	if err != nil {
		panic(err)
	}
	gone := make(chan struct{})
	runtime.AddCleanup(m, func(gone chan struct{}) { close(gone) }, gone)
	return m.Ptr(), func(f *cu.Function, s *cu.Stream) error { return launchFill(f, s, m) }, gone
}

func loseBuffer(ctx *cu.Context) (cu.DevicePtr, func(*cu.Function, *cu.Stream) error, <-chan struct{}) {
	b, err := vmm.New(ctx.Device(), lostSize)
	if err != nil {
		panic(err)
	}
	gone := make(chan struct{})
	runtime.AddCleanup(b, func(gone chan struct{}) { close(gone) }, gone)
	return b.Ptr(), func(f *cu.Function, s *cu.Stream) error { return launchFill(f, s, b) }, gone
}

// launchFill launches pattern_fill on memory.
func launchFill(f *cu.Function, s *cu.Stream, memory any) error {
	return f.Launch(s, cu.LaunchConfig{Grid: cu.Dim3{X: 16}, Block: cu.Dim3{X: 256}}, memory, uint64(lostSize), uint64(0), uint32(15))
}

// giveBackBuffer wants the loss of the buffer at p to have been reported, and
// unmaps it as vmm would have.
func giveBackBuffer(t *testing.T, dev *cu.Device, p cu.DevicePtr) {
	var leaks []cu.Leak
	require.Eventually(t, func() bool { leaks = append(leaks, cutest.TakeLeaks()...); return len(leaks) > 0 }, 30*time.Second, time.Millisecond)
	require.Len(t, leaks, 1)
	require.Contains(t, leaks[0].What, "at "+p.String())
	require.NoError(t, dev.Driver().Unmap(p, lostSize))
	require.NoError(t, dev.Driver().FreeAddress(p, lostSize))
}

// collected waits until the garbage collector has taken what gone is about, and
// has run what cleans up.
func collected(t *testing.T, gone <-chan struct{}) {
	t.Helper()
	require.Eventually(t, func() bool {
		runtime.GC()
		select {
		case <-gone:
			return true
		default:
			return false
		}
	}, 30*time.Second, time.Millisecond, "nobody collects it")
	for range 3 {
		runtime.GC()
	}
}

// newStream is a stream that goes when t ends.
func newStream(t testing.TB, ctx *cu.Context) *cu.Stream {
	t.Helper()
	return untilEnd(t, ok(ctx.NewStream())(t))
}

// zeroed is memory of n zeros that ends with its context.
func zeroed(t *testing.T, ctx *cu.Context, n uint64) cu.DevicePtr {
	t.Helper()
	m := ok(ctx.Alloc(n))(t)
	s := newStream(t, ctx)
	require.NoError(t, cu.FillAsync(s, m.Ptr(), uint8(0), n))
	require.NoError(t, s.Synchronize(soon(t)))
	return m.Ptr()
}
