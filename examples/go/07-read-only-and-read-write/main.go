// Lesson 7: read-only and read-write.
//
// A consumer that attaches read-only cannot write by mistake. This is no wall: the
// file descriptor is the capability, and carries no access rights. Give a copy to a
// consumer that must not write.
//
// Prints:
//
//	a reader reads [1 2]
//	and cannot write: CUDA_ERROR_INVALID_VALUE
//	a writer is refused: true
//	offered for writing, it writes: the producer sees [9 2]
package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/examples/go/lesson"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

func main() { lesson.Run(rights) }

func rights(dev *cu.Device, ctx *cu.Context) (err error) {
	buf, err := vmm.New(dev, 16)
	if err != nil {
		return err
	}
	defer lesson.Close(&err, buf)
	numbers := []uint64{1, 2}
	if err := cu.CopyToDevice(ctx, buf, numbers); err != nil {
		return err
	}

	err = attach(buf, cu.ReadOnly, cu.ReadOnly, func(p cu.DevicePtr) error {
		err := cu.CopyToHost(ctx, numbers, p)
		fmt.Println("a reader reads", numbers)
		var refused *cu.Error
		if errors.As(cu.CopyToDevice(ctx, p, []uint64{9}), &refused) {
			fmt.Println("and cannot write:", refused.Result)
		}
		return err
	})
	write := func(p cu.DevicePtr) error { return cu.CopyToDevice(ctx, p, []uint64{9}) }
	refused := attach(buf, cu.ReadOnly, cu.ReadWrite, write)
	fmt.Println("a writer is refused:", errors.Is(refused, share.ErrRefused))

	err = errors.Join(err, attach(buf, cu.ReadWrite, cu.ReadWrite, write), cu.CopyToHost(ctx, numbers, buf))
	fmt.Println("offered for writing, it writes: the producer sees", numbers)
	return err
}

// attach offers buf with one access and attaches to it with another. Usually two
// processes do this, as in lesson 6.
func attach(buf *vmm.Buffer, offer, want cu.Access, use func(cu.DevicePtr) error) error {
	srv, err := lesson.Listen()
	if err != nil {
		return err
	}
	if _, err := srv.Offer("numbers", buf, &share.OfferOptions{Access: offer}); err != nil {
		return errors.Join(err, srv.Close())
	}
	att, err := share.Attach(context.Background(), srv.Path(), "numbers", buf.Device(), &share.AttachOptions{Access: want})
	if err == nil {
		err = errors.Join(use(att.Ptr()), att.Close())
	}
	return errors.Join(err, srv.Close()) // which ends the offer
}
