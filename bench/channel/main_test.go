package main

import (
	"os"
	"slices"
	"testing"

	"github.com/gpufd/gpufd/cu/cutest"
)

// Our rival is the test binary, which starts its readers as it was started itself.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-as") {
		main()
	}
	cutest.Main(m)
}
