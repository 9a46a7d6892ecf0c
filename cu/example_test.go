package cu_test

import (
	"fmt"
	"log"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/kernels"
)

// Add two vectors on the device.
func ExampleFunction_Launch() {
	drv, err := cutest.Open() // a program calls cu.Open
	if err != nil {
		log.Fatal(err)
	}
	if err := addVectors(drv); err != nil {
		log.Fatal(err)
	}
	// Output: [11 22 33 44]
}

func addVectors(drv *cu.Driver) error {
	dev, err := drv.Device(0)
	if err != nil {
		return err
	}
	ctx, err := dev.PrimaryContext()
	if err != nil {
		return err
	}
	defer ctx.Close()
	mem, err := ctx.Alloc(3 * 16)
	if err != nil {
		return err
	}
	a, b, c := mem.Ptr(), mem.Ptr().Add(16), mem.Ptr().Add(32)
	if err := cu.CopyToDevice(ctx, a, []float32{1, 2, 3, 4}); err != nil {
		return err
	}
	if err := cu.CopyToDevice(ctx, b, []float32{10, 20, 30, 40}); err != nil {
		return err
	}

	m, err := ctx.LoadModule([]byte(kernels.Vector))
	if err != nil {
		return err
	}
	add, err := m.Function("vector_add")
	if err != nil {
		return err
	}
	cfg := cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 4}}
	if err := add.Launch(ctx.NullStream(), cfg, a, b, c, uint64(4)); err != nil {
		return err
	}

	sums := make([]float32, 4)
	if err := cu.CopyToHost(ctx, sums, c); err != nil {
		return err
	}
	fmt.Println(sums)
	return nil
}
