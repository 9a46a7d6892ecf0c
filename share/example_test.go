package share_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// must ends the example if anything went wrong.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// device returns a GPU, or without one the device of the software driver.
func device() *cu.Device { return must(must(cu.Open(cu.WithFallback(soft.Resolver))).Device(0)) }

// listen serves at a socket in a new directory, which is 0700, as it has to be.
func listen() (srv *share.Server, dir string) {
	dir = must(os.MkdirTemp("", "example"))
	return must(share.Listen(filepath.Join(dir, "socket"), nil)), dir
}

// A producer fills device memory and offers it; a consumer, mostly another
// process, attaches and reads the same bytes. Without a GPU they use the software
// driver.
func Example() {
	dev := device()
	ctx := must(dev.PrimaryContext())
	buf := must(vmm.New(dev, 12)) // mapped, read-write here
	must(0, cu.CopyToDevice(ctx, buf, []float32{3.5, 1.25, -2}))
	srv, dir := listen()
	defer os.RemoveAll(dir)

	must(srv.Offer("weights", buf, nil)) // until the server is closed
	err := consume(srv.Path(), dev)
	must(0, errors.Join(err, srv.Close(), buf.Close(), ctx.Close()))
	// Output:
	// weights: 3 numbers, [3.5 1.25 -2]
}

func consume(path string, dev *cu.Device) error {
	att, err := share.Attach(context.Background(), path, "weights", dev, nil)
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
	if err := cu.CopyToHost(ctx, numbers, att); err != nil {
		return err
	}
	fmt.Printf("%s: %d numbers, %v\n", att.Offer().Name, len(numbers), numbers)
	return nil
}

// A consumer maps the memory while its data is still being written, and attaches
// when it is there: what is left of the handoff then is one record and its answer.
func ExampleOffer_Publish() {
	dev := device()
	ctx, buf := must(dev.PrimaryContext()), must(vmm.New(dev, 12))
	srv, dir := listen()
	defer os.RemoveAll(dir)

	offer := must(srv.Offer("weights", buf, &share.OfferOptions{Pending: true}))
	consumed := make(chan error, 1)
	go func() { consumed <- consume(srv.Path(), dev) }() // maps, and waits for the data

	fmt.Println("the producer writes")
	must(0, cu.CopyToDevice(ctx, buf, []float32{3.5, 1.25, -2}))
	must(0, offer.Publish(context.Background()))
	must(0, errors.Join(<-consumed, srv.Close(), buf.Close(), ctx.Close()))
	// Output:
	// the producer writes
	// weights: 3 numbers, [3.5 1.25 -2]
}

// A producer watches who holds its memory, and takes one lease back. The consumer
// is told; the offer goes on.
func ExampleLease_Revoke() {
	dev := device()
	buf := must(vmm.New(dev, 4096))
	srv, dir := listen()
	defer os.RemoveAll(dir)

	offer := must(srv.Offer("cache", buf, nil))
	att := must(share.Attach(context.Background(), srv.Path(), "cache", dev, nil)) // mostly in another process
	l := offer.Leases()[0]
	fmt.Printf("consumer %d has %s access\n", l.Number(), l.Access())
	l.Revoke("another one needs the room")

	<-att.Done()
	fmt.Println("the consumer's lease is over:", att.Err())
	fmt.Printf("what it has mapped it keeps: %d bytes\n", att.Buffer().Size())
	<-l.Done()
	fmt.Printf("consumer %d is gone: %v\n", l.Number(), l.Err())
	must(0, errors.Join(att.Close(), srv.Close(), buf.Close()))
	// Output:
	// consumer 1 has read-only access
	// the consumer's lease is over: share: revoked by the producer: another one needs the room
	// what it has mapped it keeps: 4096 bytes
	// consumer 1 is gone: share: revoked by the producer: another one needs the room
}

// A consumer that has nothing to do gives the device's memory back, and keeps its address and its lease. Later it maps
// the same memory there again.
func ExampleAttachment_Detach() {
	dev := device()
	ctx := context.Background()
	srv, dir := listen()
	defer os.RemoveAll(dir)
	buf := must(vmm.New(dev, 4096))
	offer := must(srv.Offer("weights", buf, nil))
	att := must(share.Attach(ctx, srv.Path(), "weights", dev, nil)) // mostly in another process
	at := att.Ptr()

	kept := must(att.Detach(ctx, time.Hour)) // as long as that
	fmt.Println("detached:", att.Detached(), "lease kept:", kept)
	awake := must(att.Reattach(ctx, share.Same))
	fmt.Println("the address is the same:", awake.Ptr() == at)
	fmt.Println("the memory is the same:", awake.Offer().Descriptor == buf.Describe())
	must(0, errors.Join(awake.Close(), offer.Close(), srv.Close(), buf.Close()))
	// Output:
	// detached: true lease kept: true
	// the address is the same: true
	// the memory is the same: true
}

// A producer puts up a second version while a consumer has the first. The consumer is
// told, attaches again, and lets go of the first, which is its producer's again then.
func ExampleOffer_Supersede() {
	dev := device()
	ctx := context.Background()
	srv, dir := listen()
	defer os.RemoveAll(dir)
	first, second := must(vmm.New(dev, 1000)), must(vmm.New(dev, 2000))

	offer := must(srv.Offer("weights", first, nil))
	att := must(share.Attach(ctx, srv.Path(), "weights", dev, nil)) // mostly in another process
	fmt.Printf("the consumer has %d bytes\n", att.Size())
	must(offer.Supersede(second, nil))
	select {
	case <-att.Superseded():
	case <-att.Done(): // its producer has gone
	}
	next := must(share.Attach(ctx, srv.Path(), "weights", dev, nil))
	fmt.Printf("the consumer has %d bytes\n", next.Size())
	must(0, errors.Join(att.Close(), next.Close()))
	<-offer.Done() // nobody has the first version any more
	must(0, errors.Join(offer.Err(), first.Close()))

	for _, o := range must(share.List(ctx, srv.Path(), nil)) {
		fmt.Printf("%s: %d bytes, %s\n", o.Name, o.Size, o.Access)
	}
	must(0, errors.Join(srv.Close(), second.Close()))
	// Output:
	// the consumer has 1000 bytes
	// the consumer has 2000 bytes
	// weights: 2000 bytes, read-only
}
