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

// A producer watches who holds its memory, and takes one lease back. The consumer
// is told; the offer goes on.
func ExampleLease_Revoke() {
	drv, err := cu.Open(cu.WithFallback(soft.Resolver))
	if err != nil {
		log.Fatal(err)
	}
	dev, err := drv.Device(0)
	if err != nil {
		log.Fatal(err)
	}
	if err := offerAndRevoke(dev); err != nil {
		log.Fatal(err)
	}
	// Output:
	// consumer 1 has read-only access
	// the consumer's lease is over: share: revoked by the producer
	// what it has mapped it keeps: 4096 bytes
	// consumer 1 is gone: share: revoked by the producer
}

func offerAndRevoke(dev *cu.Device) (err error) {
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
	buf, err := vmm.New(dev, 4096)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, buf.Close()) }()

	leases := make(chan *share.Lease, 1)
	ctx, stop := context.WithCancel(context.Background())
	offered := make(chan error)
	srv.Expect("cache") // consumers that come early wait
	go func() {
		offered <- srv.Offer(ctx, "cache", buf, share.ReadOnly, share.OnLease(func(l *share.Lease) { leases <- l }))
	}()
	defer func() { stop(); err = errors.Join(err, <-offered) }()

	att, err := share.Attach(ctx, srv.Path(), "cache", dev) // mostly in another process
	if err != nil {
		return err
	}
	defer att.Close()
	l := <-leases
	fmt.Printf("consumer %d has %s access\n", l.Number(), l.Access())
	l.Revoke()

	<-att.Done()
	fmt.Println("the consumer's lease is over:", att.Err())
	fmt.Printf("what it has mapped it keeps: %d bytes\n", att.Buffer().Size())
	<-l.Done()
	fmt.Printf("consumer %d is gone: %v\n", l.Number(), l.Err())
	return nil
}
