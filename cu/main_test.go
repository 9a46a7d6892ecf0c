package cu_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// childEnv makes the test binary run one of children instead of the tests.
const childEnv = "GPUFD_CU_TEST_CHILD"

// children are what a test runs in a process of its own. What they return is
// their complaint.
var children = map[string]func() error{
	"descriptor zero": childDescriptorZero,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if err := children[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	keepWarm()
	cutest.Main(m)
}

var warm *cu.Context

// keepWarm holds the GPU's primary context for as long as the tests run, since
// making one takes a quarter of a second.
func keepWarm() {
	if cutest.Kind() != cu.CUDA {
		return
	}
	if drv, err := cutest.Open(); err == nil {
		if dev, err := drv.Device(0); err == nil {
			warm, _ = dev.PrimaryContext()
		}
	}
}
