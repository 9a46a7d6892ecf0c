package handoff

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// waysFor are the ways to fill and verify size bytes. The software driver is
// slow at kernels.
func waysFor(size uint64) []string {
	if cutest.Kind() == cu.Soft && size > 16*programs.MiB {
		return []string{"cpu"}
	}
	return []string{"cpu", "gpu"}
}

// defaultWay is what the programs do if nobody says how.
var defaultWay = map[cu.Kind]string{cu.Soft: "cpu", cu.CUDA: "gpu"}[cutest.Kind()]

// TestWays: whichever fills and whichever verifies, they agree on the data.
func TestWays(t *testing.T) {
	programs.Parallel(t)
	for _, c := range []struct{ size, chunk uint64 }{{size: 1}, {size: 3}, {size: 4*programs.KiB + 1}, {size: 10*programs.MiB + 1, chunk: 2 * programs.MiB}} {
		for _, fill := range append(waysFor(c.size), "") {
			t.Run(fmt.Sprintf("%d in chunks of %d, %s", c.size, c.chunk, fill), func(t *testing.T) {
				programs.Parallel(t)
				if c.chunk == 0 {
					cutest.ProvenOnSoft(t)
				}
				tryWays(t, c.size, c.chunk, fill)
			})
		}
	}
}

// tryWays has the data that is filled in one way, or as nobody says, verified in
// all ways, with this run's salt and with another.
func tryWays(t *testing.T, size, chunk uint64, fill string) {
	s := programs.NewScene(t)
	args := []string{"-json", "-salt", "7", "-size", programs.Decimal(size), "-consumers", "4"}
	if chunk != 0 {
		args = append(args, "-chunk", programs.Decimal(chunk))
	}
	if fill != "" {
		args = append(args, "-fill", fill)
	} else {
		fill = defaultWay
	}
	producer := s.Producer(args...)
	programs.WaitEvent(t, producer, "waiting")
	for _, way := range waysFor(size) {
		good := s.Consumer("-json", "-verify", way)
		good.Succeeds()
		requireWay(t, good, "verifying", "verify", way)
		bad := s.Consumer("-json", "-verify", way, "-expect-salt", "8")
		bad.Fails(1, "first at index 0, ", "; "+cli.Count(pattern.Count(size), "integer"))
	}
	producer.Fails(1, "2 consumers failed")
	requireWay(t, producer, "filling", "fill", fill)
}

// requireWay checks that p said, of what it did, which way it took.
func requireWay(t *testing.T, p *programs.Process, doing, flag, way string) {
	t.Helper()
	require.Equal(t, way, programs.Event(t, p, doing)["on"], p.Dump())
	last, _ := p.Result()
	require.Equal(t, way, last[flag])
}

// TestNoKernels: a driver that cannot load kernels is an error, 3, where they
// were asked for.
func TestNoKernels(t *testing.T) {
	programs.Parallel(t)
	env := fakeLibcuda(t, fakeDevice)
	programs.NewScene(t).Start("consumer", env, "-driver", "cuda", "-verify", "gpu").
		Fails(3, "--verify gpu: this driver cannot load the kernels", "cuModuleLoadDataEx", "does not have this function")
}

// notLaunched is a device whose driver says that kernels were launched, and
// launches none.
func notLaunched(t *testing.T) *cu.Device {
	t.Helper()
	faults := cutest.NewFaults(t)
	faults.Hook("cuLaunchKernel", func(sys.Call, func() sys.CUresult) sys.CUresult { return sys.CUDA_SUCCESS })
	return cutest.Device(t, faults.Option())
}

// fillWith fills size bytes at p as the producer does on the GPU.
func fillWith(t *testing.T, ctx *cu.Context, p cu.DevicePtr, size uint64, salt uint32) {
	t.Helper()
	k := ok(cli.NewKernels(ctx))(t)
	require.NoError(t, k.Fill(t.Context(), p, size, salt, func(uint64) error { return nil }))
	require.NoError(t, k.Close())
}

// launchOnce fills some memory. From the first time on a GPU's driver
// keeps some memory for kernels, which is nobody's leak.
func launchOnce(t *testing.T) {
	t.Helper()
	ctx := cutest.Context(t, cutest.Device(t))
	mem := ok(ctx.Alloc(programs.MiB))(t)
	fillWith(t, ctx, mem.Ptr(), programs.MiB, 0)
	requirePatternOf(t, ctx, mem.Ptr(), programs.MiB, 0)
	require.NoError(t, mem.Close())
}

// TestFault66_FillThatIsNotLaunched: a producer whose kernels fill nothing, and
// which does not notice. Its consumers do, whatever was in the memory before: the
// zeros of new memory (D9) or the data of an earlier run.
func TestFault66_FillThatIsNotLaunched(t *testing.T) {
	programs.Parallel(t)
	const size = 2*programs.MiB + 5
	launchOnce(t)
	for name, before := range map[string]func(*testing.T, cu.DevicePtr){
		"new memory": func(*testing.T, cu.DevicePtr) {},
		"data of an earlier run": func(t *testing.T, p cu.DevicePtr) {
			fillWith(t, cutest.Context(t, cutest.Device(t)), p, size, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := programs.NewScene(t)
			dev := notLaunched(t)
			buf := ok(vmm.New(dev, size))(t)
			before(t, buf.Ptr())
			fillWith(t, cutest.Context(t, dev), buf.Ptr(), size, 2)
			verdicts, serving := offer(s, buf, pattern.Meta{Count: pattern.Count(size), Salt: 2})
			for _, way := range waysFor(size) {
				s.Consumer("-verify", way).Fails(1, fmt.Sprintf("first at index 0, want 0x%08x", pattern.At(0, 2)), " wrong")
				require.ErrorIs(t, <-verdicts, share.ErrVerdict)
			}
			serving()
			require.NoError(t, buf.Close())
		})
	}
}

// offer offers buf from this process until stop is called, and sends each consumer's verdict.
func offer(s *programs.Scene, buf *vmm.Buffer, meta pattern.Meta) (ends <-chan error, stop func()) {
	s.T.Helper()
	srv, err := share.Listen(s.Socket, nil)
	require.NoError(s.T, err)
	ended := make(chan error, 10)
	_, err = srv.Offer(cli.OfferName, buf, &share.OfferOptions{Data: meta.Encode(), Verdict: true, OnEvent: func(e share.Event) {
		if e.Kind == share.Ended {
			ended <- e.Err
		}
	}})
	require.NoError(s.T, err)
	return ended, func() { require.NoError(s.T, srv.Close()) }
}

// TestFault66_CheckThatIsNotLaunched: a kernel that never runs finds nothing
// wrong. That is not taken for good data, not even if it is.
func TestFault66_CheckThatIsNotLaunched(t *testing.T) {
	programs.Parallel(t)
	for _, size := range []uint64{1, 3, 4*programs.KiB + 1, 3 * programs.MiB} {
		dev := notLaunched(t)
		ctx := cutest.Context(t, dev)
		mem := ok(ctx.Alloc(size))(t)
		fillWith(t, cutest.Context(t, cutest.Device(t)), mem.Ptr(), size, 3)
		requirePatternOf(t, ctx, mem.Ptr(), size, 3)
		k := ok(cli.NewKernels(ctx))(t)
		wrong, err := k.Check(t.Context(), mem.Ptr(), size, 3, func(uint64) error { return nil })
		require.ErrorContains(t, err, "the kernel that checks the data does not run")
		require.Zero(t, wrong)
		require.NoError(t, k.Close())
		require.NoError(t, mem.Close())
	}
}

func requirePatternOf(t *testing.T, ctx *cu.Context, p cu.DevicePtr, size uint64, salt uint32) {
	t.Helper()
	host := make([]byte, size)
	require.NoError(t, cu.CopyToHost(ctx, host, p))
	require.Zero(t, pattern.Check(host, 0, salt))
}

// TestKernelsAreGivenUp: who stops waiting while kernels run hears so, and no
// kernel uses the memory when they have returned.
func TestKernelsAreGivenUp(t *testing.T) {
	programs.Parallel(t)
	ctx := cutest.Context(t, cutest.Device(t))
	const size = 3 * programs.MiB
	mem := ok(ctx.Alloc(size))(t)
	k := ok(cli.NewKernels(ctx))(t)
	fillWith(t, ctx, mem.Ptr(), size, 0)
	stopped := errors.New("stopped")
	for _, f := range []func(context.Context, func(uint64) error) error{
		func(ctx context.Context, progress func(uint64) error) error {
			return k.Fill(ctx, mem.Ptr(), size, 0, progress)
		},
		func(ctx context.Context, progress func(uint64) error) error {
			_, err := k.Check(ctx, mem.Ptr(), size, 0, progress)
			return err
		},
	} {
		gone, cancel := context.WithCancelCause(t.Context())
		cancel(stopped)
		require.ErrorIs(t, f(gone, func(uint64) error { return nil }), stopped)
		require.ErrorIs(t, f(t.Context(), func(uint64) error { return stopped }), stopped)
		last := uint64(0)
		require.NoError(t, f(t.Context(), func(done uint64) error { last = max(last, done); return nil }))
		require.EqualValues(t, size, last)
	}
	for range 5 {
		const size = programs.MiB + 16 // a short piece is done, and a long one is not
		require.ErrorIs(t, k.Fill(t.Context(), mem.Ptr(), size, 0, func(uint64) error { return stopped }), stopped)
		zeros := make([]byte, size)
		require.NoError(t, cu.CopyToDevice(ctx, mem.Ptr(), zeros))
		require.NoError(t, ctx.Synchronize(t.Context()))
		require.NoError(t, cu.CopyToHost(ctx, zeros, mem.Ptr()))
		require.False(t, slices.ContainsFunc(zeros, func(b byte) bool { return b != 0 }), "a kernel still wrote")
	}
	require.NoError(t, k.Close())
	require.NoError(t, mem.Close())
}
