package main

import (
	"os"
	"slices"
	"testing"

	"github.com/gpufd/gpufd/cu/cutest"
)

// The producer starts its consumer as it was started itself.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-as") {
		main()
	}
	cutest.Main(m)
}
