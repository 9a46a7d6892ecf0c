package server

import (
	"fmt"
	"os"
	"testing"

	"github.com/gpufd/gpufd/cu/cutest"
)

// storeArgument runs the test binary as an fd store.
const storeArgument = "fd-store"

var children = cutest.Children{}

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == storeArgument {
		if err := RunStore(os.Args[2]); err != nil {
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
