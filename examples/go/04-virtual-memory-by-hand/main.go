// Lesson 4: virtual memory by hand.
//
// Physical memory, addresses and rights are three things. This is what package
// vmm does for you, call by call; every call here is one of the driver's.
//
// Prints:
//
//	granularity: … bytes
//	one allocation at two addresses: …, …
//	written through the first, read through the second: 42
//	writing through the second: cuMemcpyHtoDAsync_v2: CUDA_ERROR_INVALID_VALUE (1): …
//	half of it cannot be mapped: CUDA_ERROR_…
package main

import (
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/examples/go/lesson"
)

func main() { lesson.Run(byHand) }

func byHand(dev *cu.Device, ctx *cu.Context) (err error) {
	drv := dev.Driver()
	size, _, err := dev.Granularity(cu.HandleFD) // sizes and addresses are multiples of it
	if err != nil {
		return err
	}
	fmt.Println("granularity:", size, "bytes")

	// Physical memory that can leave the process as a file descriptor. It has no
	// address yet, and no context was needed.
	mem, err := dev.CreateMemory(size, cu.HandleFD)
	if err != nil {
		return err
	}
	defer lesson.Close(&err, mem)
	p, err := drv.ReserveAddress(3*size, 0, 0) // addresses, without memory
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drv.FreeAddress(p, 3*size)) }()
	q := p.Add(size)

	// The same memory twice: to write here, to read there.
	if err := errors.Join(drv.Map(p, size, 0, mem), drv.Map(q, size, 0, mem)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drv.Unmap(p, 2*size)) }()
	fmt.Printf("one allocation at two addresses: %v, %v\n", p, q)
	err = errors.Join(drv.SetAccess(p, size, cu.ReadWrite, dev), drv.SetAccess(q, size, cu.ReadOnly, dev))
	if err != nil {
		return err
	}

	got := make([]int64, 1)
	err = errors.Join(cu.CopyToDevice(ctx, p, []int64{42}), cu.CopyToHost(ctx, got, q))
	fmt.Println("written through the first, read through the second:", got[0])
	fmt.Println("writing through the second:", cu.CopyToDevice(ctx, q, got))

	// Drivers map whole allocations only: to share parts, make a buffer of several.
	var refused *cu.Error
	if errors.As(drv.Map(q.Add(size), size/2, 0, mem), &refused) {
		fmt.Println("half of it cannot be mapped:", refused.Result)
	}
	return err
}
