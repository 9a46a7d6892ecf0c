package share_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// A producer fills device memory and offers it; a consumer, mostly another
// process, attaches and reads the same bytes. Without a GPU they use the software
// driver.
func Example() {
	if err := produce(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// weights: 3 numbers, [3.5 1.25 -2]
}

func produce() (err error) {
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

	weights := []float32{3.5, 1.25, -2}
	buf, err := vmm.New(dev, 12) // mapped, read-write here
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, buf.Close()) }()
	if err := cu.CopyToDevice(ctx, buf.Ptr(), weights); err != nil {
		return err
	}

	dir, err := os.MkdirTemp("", "example") // 0700, as the socket's directory has to be
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	srv, err := share.Listen(filepath.Join(dir, "socket"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.Close()) }()

	srv.Expect("weights") // consumers that come early wait
	cctx, stop := context.WithCancel(context.Background())
	consumed := make(chan error, 1)
	go func() {
		consumed <- consume(srv.Path(), dev)
		stop()
	}()
	err = srv.Offer(cctx, "weights", buf, share.ReadOnly) // serves until cctx is done
	return errors.Join(err, <-consumed)
}

func consume(path string, dev *cu.Device) error {
	att, err := share.Attach(context.Background(), path, "weights", dev)
	if err != nil {
		return err
	}
	defer att.Close() // the connection is the lease
	ctx, err := dev.PrimaryContext()
	if err != nil {
		return err
	}
	defer ctx.Close()
	numbers := make([]float32, att.Size()/4)
	if err := cu.CopyToHost(ctx, numbers, att.Ptr()); err != nil {
		return err
	}
	fmt.Printf("%s: %d numbers, %v\n", att.Offer().Name, len(numbers), numbers)
	return nil
}
