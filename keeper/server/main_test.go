package server

import (
	"fmt"
	"os"
	"testing"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/keeper"
)

// storeArgument runs the test binary as an fd store.
const storeArgument = "fd-store"

// moverArgument runs the test binary as a mover.
const moverArgument = "keeper-mover"

var children = cutest.Children{}

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == storeArgument {
		if err := RunStore(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 2 && os.Args[1] == moverArgument {
		if err := keeper.RunMover(openMortal); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := os.Setenv("GPUFD_SOFT_DEVICES", "8"); err != nil { // of the software driver alone
		panic(err)
	}
	cutest.Main(m, children)
}
