package kernels_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/kernels"
)

// One kernel fills memory with the pattern, others look for what is wrong in it.
// It runs on a GPU, or on the software driver where there is none.
func Example() {
	if err := fillAndCheck(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// wrong: 0
	// wrong: 1, the first at index 25
}

func fillAndCheck() (err error) {
	drv, err := cu.Open(cu.WithFallback(soft.Resolver))
	if err != nil {
		return err
	}
	dev, err := drv.Device(0)
	if err != nil {
		return err
	}
	ctx, err := dev.PrimaryContext()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ctx.Close()) }()
	const size = 4096
	mem, err := ctx.Alloc(size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mem.Close()) }()
	stream, err := ctx.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	set, err := kernels.Load(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, set.Close()) }()

	// Integers from index 0 on, with salt 1.
	if err := set.FillAsync(stream, mem.Ptr(), size, 0, 1); err != nil {
		return err
	}
	found, err := set.Check(context.Background(), stream, mem.Ptr(), size, 0, 1)
	if err != nil {
		return err
	}
	fmt.Println("wrong:", found.Wrong)

	// The byte at 100 is in the integer at index 25.
	if err := set.FillBytesAsync(stream, mem.Ptr().Add(100), 1, 0xff); err != nil {
		return err
	}
	found, err = set.Check(context.Background(), stream, mem.Ptr(), size, 0, 1)
	if err != nil {
		return err
	}
	fmt.Printf("wrong: %d, the first at index %d\n", found.Wrong, found.Index)
	return nil
}
