package cu_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// Contexts that are really lost: one, and with it all others, on whatever
// device, until the process ends.
func TestContextsAreLostTogether(t *testing.T) {
	runChild(t, "lose contexts")
}

func childLoseContexts() error {
	dev := get(childDevice())
	primary := get(dev.PrimaryContext())
	apart, victim := get(dev.NewContext(cu.SchedAuto)), get(dev.NewContext(cu.SchedAuto))
	mem, stream := get(primary.Alloc(1<<20)), get(apart.NewStream())
	free := poison(victim)
	devices := dev.Driver().Devices()
	other, err := devices[len(devices)-1].PrimaryContext() // of another device, if there is one
	if err != nil && !errors.Is(err, cu.ErrContextLost) {
		return err
	}
	well := []*cu.Context{primary, apart}
	if err == nil {
		well = append(well, other)
	}
	must(allLost(victim, well...))
	// All that was made can be given back, in whatever order.
	if err := errors.Join(victim.Close(), mem.Close(), primary.Close(), stream.Close(), apart.Close(), other.Close(), free()); err != nil {
		return fmt.Errorf("giving back: %w", err)
	}
	return errors.Join(stillLost(dev), stillLost(devices[len(devices)-1]))
}

// poison writes a value through a mapping that is read-only (D20b of docs/driver-facts.md), and returns
// what gives the memory back.
func poison(ctx *cu.Context) (free func() error) {
	dev := ctx.Device()
	drv := dev.Driver()
	g, _, err := dev.Granularity(cu.HandleFD)
	must(err)
	m, p := get(dev.CreateMemory(g, cu.HandleFD)), get(drv.ReserveAddress(g, 0, 0))
	must(errors.Join(drv.Map(p, g, 0, m), drv.SetAccess(p, g, cu.ReadOnly, dev)))
	call := ctx.Caller()
	r := call.CuStreamWriteValue32_v2(0, sys.CUdeviceptr(p), 1, 0)
	if r == sys.SymbolMissing {
		r = call.CuStreamWriteValue32(0, sys.CUdeviceptr(p), 1, 0)
	}
	if r != sys.CUDA_SUCCESS {
		must(fmt.Errorf("cuStreamWriteValue32: %v", r))
	}
	return func() error { return errors.Join(drv.Unmap(p, g), drv.FreeAddress(p, g), m.Close()) }
}

// allLost says what is wrong if the first context does not notice that it is lost,
// or the others are not lost with it.
func allLost(victim *cu.Context, others ...*cu.Context) error {
	err := victim.Caller().CuCtxSynchronize() // unseen by cu: the others notice by themselves
	if err != sys.CUDA_ERROR_LAUNCH_FAILED {
		return fmt.Errorf("the work did not fail but ended with %v", err)
	}
	for _, c := range append(others, victim) {
		if _, _, err := c.MemInfo(); !errors.Is(err, cu.ErrContextLost) || !errors.Is(err, cu.ErrLaunchFailed) {
			return fmt.Errorf("a context of a process that lost one: %v", err)
		}
	}
	return nil
}

// stillLost says what is wrong if a context can be made: through dev, or through
// a driver that does not know yet.
func stillLost(dev *cu.Device) error {
	again := get(get(cutest.Open()).Device(dev.Ordinal()))
	for _, get := range []func() (*cu.Context, error){
		dev.PrimaryContext, func() (*cu.Context, error) { return dev.NewContext(0) },
		again.PrimaryContext, func() (*cu.Context, error) { return again.NewContext(0) },
	} {
		if _, err := get(); !errors.Is(err, cu.ErrContextLost) {
			return fmt.Errorf("a new context of such a process: %v", err)
		}
	}
	return errors.Join(again.ResetPrimary(), dev.ResetPrimary())
}
