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

// A producer puts up a second version while a consumer has the first. The consumer is
// told, attaches again, and lets go of the first, which is its producer's again then.
func ExampleServer_Replace() {
	drv, err := cu.Open(cu.WithResolver(soft.Resolver))
	if err != nil {
		log.Fatal(err)
	}
	dev, err := drv.Device(0)
	if err != nil {
		log.Fatal(err)
	}
	if err := swap(dev); err != nil {
		log.Fatal(err)
	}
	// Output:
	// the consumer has 1000 bytes
	// the consumer has 2000 bytes
	// the first version is free again
	// weights: 2000 bytes, read-only
}

func swap(dev *cu.Device) (err error) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	srv, err := share.Listen(filepath.Join(dir, "socket"))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	srv.Expect("weights")
	first, second := make(chan error), make(chan error)
	go func() { first <- offerVersion(ctx, srv, dev, 1000) }()
	consumed := make(chan error)
	begin := func() { go func() { second <- offerVersion(ctx, srv, dev, 2000) }() }
	go func() { consumed <- followTo(srv.Path(), dev, begin) }() // mostly in another process
	err = errors.Join(<-consumed, <-first)
	fmt.Println("the first version is free again")

	offers, lerr := share.List(ctx, srv.Path())
	for _, o := range offers {
		fmt.Printf("%s: %d bytes, %s\n", o.Name, o.Size, o.Access)
	}
	stop()
	return errors.Join(err, lerr, <-second, srv.Close())
}

// offerVersion returns when another version has come and nobody has this one any more.
func offerVersion(ctx context.Context, srv *share.Server, dev *cu.Device, size uint64) error {
	buf, err := vmm.New(dev, size)
	if err != nil {
		return err
	}
	return errors.Join(srv.Replace(ctx, "weights", buf, share.ReadOnly), buf.Close())
}

// followTo takes the version that is there, and the next one.
func followTo(path string, dev *cu.Device, attached func()) error {
	att, err := share.Attach(context.Background(), path, "weights", dev)
	if err != nil {
		return err
	}
	fmt.Printf("the consumer has %d bytes\n", att.Size())
	attached()
	select {
	case <-att.Superseded():
	case <-att.Done(): // its producer has gone
	}
	next, err := share.Attach(context.Background(), path, "weights", dev)
	if err != nil {
		return errors.Join(err, att.Close())
	}
	fmt.Printf("the consumer has %d bytes\n", next.Size())
	return errors.Join(att.Close(), next.Close())
}
