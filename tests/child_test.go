package tests

import (
	"context"
	"fmt"
	"os"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// Tests start this test binary again for what the programs do not do. The
// modes of such a child:
const (
	childEnv      = "GPUFD_TEST_CHILD"
	childSocket   = "GPUFD_TEST_SOCKET"
	childFDs      = "fds"      // print the descriptors it was started with
	childReceived = "received" // attach, and stay where the offer has been received
	childMapped   = "mapped"   // attach, and stay where the memory is mapped
	childHoards   = "hoards"   // take the device's memory, less what needs no sharing of it
)

// child is the main function of a child.
func child(mode string) int {
	switch mode {
	case childFDs:
		for fd, target := range inherited {
			fmt.Println(fd, target)
		}
		return 0
	case childReceived:
		return hold(share.OnReceived(func(share.Offer, []*os.File) { stay() }))
	case childMapped:
		return hold()
	case childHoards:
		return hoard()
	}
	if f := actors[mode]; f != nil {
		return perform(f)
	}
	return 1
}

// spare is what a hoarder leaves of a device: on a GPU, contexts take some.
var spare = map[cu.Kind]uint64{cu.Soft: 8 << 20, cu.CUDA: 2 << 30}[cutest.Kind()]

// hoard takes memory and stays, for the test to kill it.
func hoard() int {
	err := func() error {
		drv, err := cutest.Open()
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
		free, _, err := ctx.MemInfo()
		if err != nil {
			return err
		}
		buf, err := vmm.New(dev, free-spare)
		if err != nil {
			return err
		}
		defer buf.Close()
		stay()
		return nil
	}()
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// hold attaches and stays, for the test to kill it.
func hold(opts ...share.AttachOption) int {
	drv, err := cutest.Open()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dev, err := drv.Device(0)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	att, err := share.Attach(context.Background(), os.Getenv(childSocket), cli.OfferName, dev, opts...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer att.Close()
	stay()
	return 0
}

func stay() {
	fmt.Println("holding")
	select {}
}

// child starts this binary in that mode.
func (s *scene) child(mode string, env ...string) *process {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	env = append(args(childEnv+"="+mode, childSocket+"="+s.socket, "GPUFD_DRIVER="+kindName()), env...)
	return start(s.t, mode, self, env)
}
