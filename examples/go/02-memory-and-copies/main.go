// Lesson 2: memory on the device, and copies to and from it.
//
// Work happens in a context. Memory is allocated in elements, and copied from and to slices of
// the same elements; any goroutine may do it.
//
// Prints:
//
//	sum on the host: 4950
//	the same bytes, copied on the device: [0 1 2 3]
//	filled: [7 7 7 7]
//	more than there is: cu: the memory is too short: …
//	a copy to nowhere: cuMemcpyHtoDAsync_v2: CUDA_ERROR_INVALID_VALUE (1): …
//	after Close: cu: cuStreamQuery: the stream is closed
package main

import (
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/examples/go/lesson"
)

func main() { lesson.Run(copies) }

// ctx is the device's primary context: dev.PrimaryContext(), which everything
// else in the process that uses the device shares.
func copies(_ *cu.Device, ctx *cu.Context) error {
	numbers := make([]uint32, 100)
	for i := range numbers {
		numbers[i] = uint32(i)
	}
	a, err := cu.Alloc[uint32](ctx, 1<<20)
	if err != nil {
		return err
	}
	b, err := cu.Alloc[uint32](ctx, 1<<20)
	if err != nil {
		return err // closing ctx ends a too
	}

	// Copies and fills wait until the bytes are there; their Async forms do not
	// (lesson 3).
	back := make([]uint32, 100)
	err = errors.Join(
		cu.CopyToDevice(ctx, a, numbers),
		cu.Copy(ctx, b, a, 400),
		cu.CopyToHost(ctx, back, b),
	)
	if err != nil {
		return err
	}
	sum := uint32(0)
	for _, n := range back {
		sum += n
	}
	fmt.Println("sum on the host:", sum)
	fmt.Println("the same bytes, copied on the device:", back[:4])

	err = errors.Join(cu.Fill(ctx, b, uint32(7), 100), cu.CopyToHost(ctx, back, b))
	fmt.Println("filled:", back[:4])

	fmt.Println("more than there is:", cu.Fill(ctx, b, uint32(7), 1<<20+1))
	fmt.Println("a copy to nowhere:", cu.CopyToDevice(ctx, cu.DevicePtr(0), numbers))

	err = errors.Join(err, a.Close(), a.Close()) // once more does nothing, and never reaches the driver
	s, made := ctx.NewStream()
	err = errors.Join(err, made, s.Close())
	_, closed := s.Query()
	fmt.Println("after Close:", closed)
	return err
}
