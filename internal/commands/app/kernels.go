package app

import (
	"fmt"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
)

// Enter takes the primary context of dev, and loads kernels into it, as Kernels does.
func (a *App) Enter(dev *cu.Device, flag, way string) (ctx *cu.Context, k *cli.Kernels, err error) {
	if err = a.Timed("context", func() (err error) { ctx, err = dev.PrimaryContext(); return err }); err == nil {
		k, err = a.Kernels(ctx, flag, way)
	}
	return ctx, k, err
}

// Kernels loads the kernels into ctx for the work of the flag of that name, as
// way, gpu or cpu, says. Without way, the GPU does the work if its driver can load them; with the
// software driver, which is slow at it, the CPU does. If way is gpu and the driver
// cannot load them, that is an error of the machine.
func (a *App) Kernels(ctx *cu.Context, flag, way string) (k *cli.Kernels, err error) {
	if way == "cpu" || way == "" && a.Driver.Kind() == cu.Soft {
		return &cli.Kernels{}, nil
	}
	err = a.Timed("kernels", func() (err error) {
		k, err = cli.NewKernels(ctx)
		return err
	})
	switch {
	case err == nil:
		return k, nil
	case way == "gpu":
		return nil, cli.Machinef("--%s gpu: this driver cannot load the kernels: %w", flag, err)
	}
	a.whyCPU = fmt.Errorf("this driver cannot load the kernels: %w", err)
	return &cli.Kernels{}, nil
}

// SayWay prints whether the GPU or the CPU fills or verifies, and why the CPU has to,
// if it has to.
func (a *App) SayWay(flag, doing string, k *cli.Kernels) {
	way, words := "cpu", "on the CPU"
	if k.OnGPU() {
		way, words = "gpu", "on the GPU"
	}
	fields := Fields{"on": way}
	if a.whyCPU != nil {
		fields["why"] = cli.OneLine(a.whyCPU)
		words += ": " + cli.OneLine(a.whyCPU)
	}
	a.Result[flag] = way
	a.Say(doing, fields, "  %s %s", doing, words)
}
