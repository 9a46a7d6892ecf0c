package main

import (
	"context"
	"fmt"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share"
)

// use prints what is offered and by whom, over and over. A server would load its model
// from att.Ptr, and serve until att.Context ends: an upgrade of the daemon does not end it.
func use(socket string, dev *cu.Device, ctx *cu.Context) error {
	for att, err := range share.Follow(context.Background(), socket, "weights", dev, nil) {
		if err != nil {
			return err
		}
		text := make([]byte, att.Size())
		if err := cu.CopyToHost(ctx, text, att); err != nil {
			return err
		}
		fmt.Printf("%s of generation %d, at %v, from %d\n", text, att.Offer().Descriptor.Generation, att.Ptr(), att.Offer().Producer.PID)
		for ended := false; !ended; {
			select {
			case notice := <-att.Notices():
				fmt.Printf("notice: %s, at %v, from %d\n", notice, att.Ptr(), att.Offer().Producer.PID)
			case <-att.Context().Done():
				fmt.Println("over:", context.Cause(att.Context()))
				ended = true
			}
		}
	}
	return nil
}
