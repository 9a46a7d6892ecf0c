package weights_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/weights"
)

// A worker loads what a trainer hands over after each step. It uses its weights only after a whole update.
func ExampleFollow() {
	drv, err := cutest.Open()
	if err != nil {
		log.Fatal(err)
	}
	dev, err := drv.Device(0)
	if err != nil {
		log.Fatal(err)
	}
	c, err := dev.PrimaryContext()
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	path, stop, err := trainer(c)
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	for u, err := range weights.Follow(context.Background(), "policy", c, &weights.Options{Socket: path}) {
		if err != nil {
			log.Fatal(err)
		}
		n := 0
		for t, err := range u.Tensors(context.Background()) {
			if err != nil {
				break
			}
			_ = t.Ptr // load it, and wait until that is done
			n++
		}
		if err := u.Err(); err != nil {
			fmt.Println("use no weights:", errors.Is(err, weights.ErrTorn))
			continue
		}
		fmt.Println("step", u.Step, "is whole, with", n, "tensors")
		break
	}
	// Output:
	// use no weights: true
	// step 8 is whole, with 0 tensors
}

// trainer gives up step 7, and publishes step 8 without tensors. Trainers use gpufd.weights.Publisher of Python.
func trainer(c *cu.Context) (path string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return "", nil, err
	}
	srv, err := share.Listen(filepath.Join(dir, "s"), nil)
	if err != nil {
		return "", nil, err
	}
	w, err := channel.NewWriter(context.Background(), c, srv, weights.OfferName("policy", c.Device().UUID()), 2, 4096, channel.WithAnyOrder())
	if err != nil {
		return "", nil, err
	}
	sent := make(chan error, 1)
	go func() {
		err := w.AwaitReaders(context.Background(), 1)
		for i, flags := range []byte{5, 3} { // first and given up; first and last
			own := make([]byte, 80)
			copy(own, "GFWU")
			own[4], own[8], own[16] = flags, byte(i+1), byte(i+7)
			s, there := w.Acquire(context.Background())
			if err = errors.Join(err, there); err != nil {
				break
			}
			err = w.Publish(s, channel.Meta{Size: 1, User: own})
		}
		sent <- err
	}()
	return srv.Path(), func() {
		if err := errors.Join(<-sent, w.Close(), srv.Close(), os.RemoveAll(dir)); err != nil {
			log.Print(err)
		}
	}, nil
}
