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
	defer ctx.Close() // closes what was made in it, too
	s, err := ctx.NewStream()
	if err != nil {
		return err
	}
	var a, b, c cu.Slice[float32]
	for _, v := range []*cu.Slice[float32]{&a, &b, &c} {
		if *v, err = cu.Alloc[float32](ctx, 4); err != nil {
			return err
		}
	}
	if err := cu.CopyToDevice(s, a, []float32{1, 2, 3, 4}); err != nil {
		return err
	}
	if err := cu.CopyToDevice(s, b, []float32{10, 20, 30, 40}); err != nil {
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
	if err := add.Launch(s, cfg, a, b, c, uint64(4)); err != nil {
		return err
	}

	sums := make([]float32, 4)
	if err := cu.CopyToHost(s, sums, c); err != nil { // behind the kernel
		return err
	}
	fmt.Println(sums)
	return nil
}
