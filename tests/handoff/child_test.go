package handoff

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// The roles of this test binary as a child, for what the programs do not do.
const (
	childFDs      = "fds"      // print the descriptors it was started with
	childReceived = "received" // attach, and stay where the offer has been received
	childMapped   = "mapped"   // attach, and stay where the memory is mapped
	childHoards   = "hoards"   // take the device's memory, less what needs no sharing of it
)

// inherited are the descriptors that this process was started with.
var inherited = programs.OpenFDs("self")

var args = programs.Args

func TestMain(m *testing.M) {
	programs.Main(m, cutest.Children{
		childFDs: func() error {
			for fd, target := range inherited {
				fmt.Println(fd, target)
			}
			return nil
		},
		childReceived: func() error {
			return hold(share.AttachOptions{OnReceived: func(share.OfferInfo, []*os.File) { stay() }})
		},
		childMapped: func() error { return hold(share.AttachOptions{}) },
		childHoards: hoard,
	})
}

// spare is what a hoarder leaves of a device: on a GPU, contexts take some.
var spare = map[cu.Kind]uint64{cu.Soft: 8 << 20, cu.CUDA: 2 << 30}[cutest.Kind()]

// hoard takes memory and stays, for the test to kill it.
func hoard() error {
	drv := testenv.Got(cutest.Open())
	dev := testenv.Got(drv.Device(0))
	ctx := testenv.Got(dev.PrimaryContext())
	free, _, err := ctx.MemInfo()
	if err != nil {
		return err
	}
	buf := testenv.Got(vmm.New(dev, free-spare))
	defer buf.Close()
	stay()
	return nil
}

// hold attaches at the socket of the first argument and stays, for the test to kill it.
func hold(opts share.AttachOptions) error {
	drv := testenv.Got(cutest.Open())
	dev := testenv.Got(drv.Device(0))
	att := testenv.Got(share.Attach(context.Background(), os.Args[1], cli.OfferName, dev, &opts))
	defer att.Close()
	stay()
	return nil
}

// serving is a scene with a producer that serves.
func serving(t *testing.T, flags ...string) (*programs.Scene, *programs.Process) {
	t.Helper()
	s := programs.NewScene(t)
	return s, s.Serving(flags...)
}

// endsInOrder ends a producer that serves until it is told to end.
func endsInOrder(producer *programs.Process) {
	producer.T.Helper()
	producer.Signal(syscall.SIGTERM)
	producer.Succeeds()
}

func stay() {
	fmt.Println("holding")
	select {}
}
