// Lesson 6: share memory with another process.
//
// The program starts itself once more as the consumer. No data goes through the socket: a file
// descriptor does, and both have the memory. The connection is a lease: each knows of the other.
//
// Prints:
//
//	producer: offers 4 numbers
//	consumer: weights, read-only: [3.5 1.25 -2 0.5]
//	producer: the consumer has gone, and found them good
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/examples/go/lesson"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

func main() {
	if len(os.Args) == 2 {
		lesson.Run(consume)
	} else {
		lesson.Run(produce)
	}
}

func produce(dev *cu.Device, ctx *cu.Context) (err error) {
	wait, cancel := context.WithTimeout(context.Background(), time.Minute) // every wait ends
	defer cancel()
	buf, err := vmm.New(dev, 16)
	if err != nil {
		return err
	}
	defer lesson.Close(&err, buf)
	if err := cu.CopyToDevice(ctx, buf, []float32{3.5, 1.25, -2, 0.5}); err != nil {
		return err
	}
	srv, err := lesson.Listen()
	if err != nil {
		return err
	}
	defer lesson.Close(&err, srv)
	fmt.Println("producer: offers 4 numbers")
	var lease *share.Lease // ends with the consumer's verdict: a bad one, or none, is its error
	offer, err := srv.Offer("weights", buf, &share.OfferOptions{Verdict: true, OnLease: func(l *share.Lease) { lease = l }})
	if err != nil {
		return err
	}
	consumer := exec.CommandContext(wait, os.Args[0], srv.Path())
	consumer.Stdout, consumer.Stderr = os.Stdout, os.Stderr
	if err = errors.Join(consumer.Run(), offer.Close(), lease.Err()); err == nil {
		fmt.Println("producer: the consumer has gone, and found them good")
	}
	return err
}

// consume is the other process.
func consume(dev *cu.Device, ctx *cu.Context) (err error) {
	wait, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	att, err := share.Attach(wait, os.Args[1], "weights", dev, nil)
	if err != nil {
		return err
	}
	defer lesson.Close(&err, att) // ends the lease, and the mapping
	numbers := make([]float32, 4)
	fault := cu.CopyToHost(ctx, numbers, att)
	fmt.Printf("consumer: %s, %v: %v\n", att.Offer().Name, att.Access(), numbers)
	return errors.Join(fault, att.Report(wait, fault))
}
