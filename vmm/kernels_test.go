package vmm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/kernels"
	"github.com/gpufd/gpufd/vmm"
)

// launches are the kernels that change device memory.
func launches(k *kernels.Set, s *cu.Stream, p cu.DevicePtr) map[string]func() error {
	return map[string]func() error{
		"Fill":      func() error { return k.FillAsync(s, p, 4096, 0, 1) },
		"FillBytes": func() error { return k.FillBytesAsync(s, p.Add(5), 1, 0) },
		"Copy":      func() error { return k.CopyAsync(s, p, p.Add(8192), 4096) },
		"VectorAdd": func() error { return k.VectorAddAsync(s, p, p.Add(4096), p.Add(8192), 64) },
		"Saxpy":     func() error { return k.SaxpyAsync(s, 1, p, p.Add(4096), 64) },
	}
}

// TestFault70_KernelWritesThroughAReadOnlyMapping: a consumer's kernels read what
// is mapped read-only, and one that writes there faults (D5 of docs/driver-facts.md): the consumer's
// context is lost, and neither the producer's nor its bytes suffer.
func TestFault70_KernelWritesThroughAReadOnlyMapping(t *testing.T) {
	_, dev, ctx, g := tidy(t)
	buf := newBuffer(t, dev, g)
	want := noise(g, 4)
	write(t, ctx, buf.Ptr(), want)
	for do := range launches(nil, nil, 0) {
		runChild(t, buf, "launches a writer", do)
		require.True(t, string(want) == string(read(t, ctx, buf.Ptr(), g)), do)
	}
	write(t, ctx, buf.Ptr(), noise(g, 5)) // all is well here
	require.True(t, string(noise(g, 5)) == string(read(t, ctx, buf.Ptr(), g)))
}

func childLaunchesAWriter() error {
	buf, ctx, err := attach(cu.ReadOnly)
	if err != nil {
		return err
	}
	k, err1 := kernels.Load(ctx)
	s, err2 := ctx.NewStream()
	must(errors.Join(err1, err2))
	soon, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	const part = 4096 // an interpreter may run this
	sum, err := k.Checksum(soon, s, buf.Ptr(), part)
	if want := kernels.Checksum(noise(buf.Size(), 4)[:part]); err != nil || sum != want {
		return fmt.Errorf("a kernel that reads found %#x instead of %#x: %w", sum, want, err)
	}
	do := os.Getenv(doEnv)
	if err := launches(k, s, buf.Ptr())[do](); err != nil {
		return fmt.Errorf("launching %s: %w", do, err)
	}
	if err := s.Synchronize(soon); !errors.Is(err, cu.ErrIllegalAddress) || !errors.Is(err, cu.ErrContextLost) {
		return fmt.Errorf("%s through a read-only mapping ended with: %w", do, err)
	}
	if err := k.FillAsync(s, buf.Ptr(), 16, 0, 0); !errors.Is(err, cu.ErrContextLost) {
		return fmt.Errorf("after that, a launch ended with: %w", err)
	}
	return errors.Join(k.Close(), s.Close(), buf.Close(), ctx.Close())
}

// Memory that has been closed is no argument of a kernel, prepared or not.
func TestClosedMemoryIsNoArgument(t *testing.T) {
	_, dev, ctx, _ := tidy(t)
	mod := ok(ctx.LoadModule([]byte(kernels.Memory)))(t)
	f := ok(mod.Function("fill_bytes"))(t)
	g := granularity(t, dev)
	buf := ok(vmm.New(dev, g))(t)
	view := ok(buf.NewView(cu.ReadWrite))(t)
	room := ok(vmm.Reserve(dev.Driver(), g))(t)
	alloc := ok(vmm.Create(dev, g))(t)
	mapping := ok(room.Map(0, alloc))(t)
	require.NoError(t, mapping.SetAccess(cu.ReadWrite))
	one := cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 1}}
	for _, c := range []struct {
		name   string
		memory interface {
			Ptr() cu.DevicePtr
			Close() error
		}
	}{{"*vmm.View", view}, {"*vmm.Buffer", buf}, {"*vmm.Mapping", mapping}, {"*vmm.Reservation", room}} {
		require.NotZero(t, c.memory.Ptr())
		l := ok(f.Prepare(one, c.memory, uint64(1), uint8(7)))(t)
		if c.memory != room { // which has nothing left by then
			require.NoError(t, l.Run(ctx.NullStream()))
			require.NoError(t, ctx.Synchronize(t.Context()))
		}
		require.NoError(t, c.memory.Close())
		require.Zero(t, c.memory.Ptr())
		for _, err := range []error{l.Run(ctx.NullStream()), f.Launch(ctx.NullStream(), one, c.memory, uint64(1), uint8(7))} {
			var wrong *cu.ArgumentError
			require.ErrorAs(t, err, &wrong)
			require.ErrorIs(t, err, cu.ErrClosed)
			require.ErrorContains(t, err, "args[0]: a closed "+c.name)
		}
	}
	require.NoError(t, alloc.Close())
	require.NoError(t, ctx.Synchronize(t.Context()), "no kernel ran on what is closed")
	require.NoError(t, mod.Close())
}
