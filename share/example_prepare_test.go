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

// A consumer maps the memory while its data is still being written, and attaches
// when it is there: what is left of the handoff then is one record and its answer.
func ExampleServer_Prepare() {
	drv, err := cu.Open(cu.WithFallback(soft.Resolver))
	if err != nil {
		log.Fatal(err)
	}
	dev, err := drv.Device(0)
	if err != nil {
		log.Fatal(err)
	}
	if err := prepare(dev); err != nil {
		log.Fatal(err)
	}
	// Output:
	// the producer writes
	// weights: 3 numbers, [3.5 1.25 -2]
}

func prepare(dev *cu.Device) (err error) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	srv, err := share.Listen(filepath.Join(dir, "socket"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.Close()) }()
	buf, err := vmm.New(dev, 12)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, buf.Close()) }()

	offer, err := srv.Prepare("weights", buf, share.ReadOnly, share.WithLeases(1))
	if err != nil {
		return err
	}
	defer offer.Close() // does nothing after Offer
	consumed := make(chan error, 1)
	go func() { consumed <- consume(srv.Path(), dev) }() // maps, and waits for the data

	fmt.Println("the producer writes")
	if err := write(dev, buf); err != nil {
		return err
	}
	return errors.Join(offer.Offer(context.Background()), <-consumed)
}

func write(dev *cu.Device, buf *vmm.Buffer) (err error) {
	ctx, err := dev.PrimaryContext()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ctx.Close()) }()
	return cu.CopyToDevice(ctx, buf.Ptr(), []float32{3.5, 1.25, -2})
}
