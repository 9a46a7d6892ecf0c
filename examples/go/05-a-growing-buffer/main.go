// Lesson 5: a buffer that grows where it is.
//
// A vmm.Buffer owns memory, addresses and mapping together. With room reserved
// behind it, it grows chunk by chunk: its address stays, and so does its data.
//
// Prints:
//
//	at …: 1 chunk of …, room for 8
//	grown to 4 chunks, still there: true
//	the old data: [1 2 3]
//	beyond its room: …
//	a range of it: 2 descriptors for chunks 1 and 2
package main

import (
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/examples/go/lesson"
	"github.com/gpufd/gpufd/vmm"
)

func main() { lesson.Run(grow) }

func grow(dev *cu.Device, ctx *cu.Context) (err error) {
	chunk, err := vmm.Granularity(dev)
	if err != nil {
		return err
	}
	// Addresses cost nothing: reserve for the largest size there may ever be.
	buf, err := vmm.New(dev, chunk, vmm.WithChunkSize(chunk), vmm.WithCapacity(8*chunk))
	if err != nil {
		return err
	}
	defer lesson.Close(&err, buf)
	at := buf.Ptr()
	fmt.Printf("at %v: 1 chunk of %d, room for 8\n", at, chunk)

	if err := cu.CopyToDevice(ctx, at, []uint16{1, 2, 3}); err != nil {
		return err
	}
	if err := buf.Grow(4 * chunk); err != nil {
		return err
	}
	fmt.Printf("grown to %d chunks, still there: %v\n", buf.Mapped()/chunk, buf.Ptr() == at)
	old := make([]uint16, 3)
	if err := cu.CopyToHost(ctx, old, at); err != nil {
		return err
	}
	fmt.Println("the old data:", old)

	// A Grow that fails leaves the buffer as it was.
	fmt.Println("beyond its room:", buf.Grow(9*chunk))

	// Chunks are what can be shared on its own (lesson 6).
	_, files, err := buf.ExportRange(chunk, 2*chunk)
	fmt.Printf("a range of it: %d descriptors for chunks 1 and 2\n", len(files))
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	return err
}
