package vmm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/vmm"
)

// A buffer is written, grows where it is, and is read. It runs on a GPU, or on
// the software driver where there is none.
func Example() {
	if err := growingBuffer(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// chunks: 1
	// chunks: 2, at the same address: true
	// [3.5 1.25 -2]
}

func growingBuffer() (err error) {
	drv, err := cu.Open(cu.WithFallback(soft.Resolver))
	if err != nil {
		return err
	}
	dev, err := drv.Device(0)
	if err != nil {
		return err
	}
	ctx, err := dev.PrimaryContext() // which copies need
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ctx.Close()) }()

	// Memory for one chunk, and address space for four.
	chunk, err := vmm.Granularity(dev)
	if err != nil {
		return err
	}
	buf, err := vmm.New(dev, chunk, vmm.WithChunkSize(chunk), vmm.WithCapacity(4*chunk))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, buf.Close()) }()
	fmt.Println("chunks:", buf.Mapped()/chunk)
	if err := cu.CopyToDevice(ctx, buf, []float32{3.5, 1.25, -2}); err != nil {
		return err
	}

	before := buf.Ptr()
	if err := buf.Grow(2 * chunk); err != nil {
		return err
	}
	fmt.Printf("chunks: %d, at the same address: %t\n", buf.Mapped()/chunk, buf.Ptr() == before)

	numbers := make([]float32, 3)
	if err := cu.CopyToHost(ctx, numbers, buf); err != nil {
		return err
	}
	fmt.Println(numbers)
	return nil
}

// A file is loaded into a buffer and stored in another file.
func ExampleBuffer_Load() {
	if err := loadAndStore(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 1048576 of 1048576 bytes
	// the copy is the same: true
}

func loadAndStore() (err error) {
	from, err := os.CreateTemp("", "example")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close(), os.Remove(from.Name())) }()
	to, err := os.CreateTemp("", "example")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close(), os.Remove(to.Name())) }()
	data := bytes.Repeat([]byte("weights "), 1<<17)
	if _, err := from.Write(data); err != nil {
		return err
	}

	drv, err := cu.Open(cu.WithFallback(soft.Resolver))
	if err != nil {
		return err
	}
	dev, err := drv.Device(0)
	if err != nil {
		return err
	}
	size := uint64(len(data))
	buf, err := vmm.New(dev, size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, buf.Close()) }()

	err = buf.Load(context.Background(), []vmm.FileRange{{File: from, Size: size}}, vmm.TransferOptions{
		OnProgress: func(done, total uint64) { fmt.Println(done, "of", total, "bytes") },
	})
	if err != nil {
		return err
	}
	if err := buf.Store(context.Background(), []vmm.FileRange{{File: to, Size: size}}, vmm.TransferOptions{}); err != nil {
		return err
	}
	stored, err := os.ReadFile(to.Name())
	fmt.Println("the copy is the same:", bytes.Equal(data, stored))
	return err
}
