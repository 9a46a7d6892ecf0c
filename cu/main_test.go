package cu_test

import (
	"testing"

	"github.com/gpufd/gpufd/cu/cutest"
)

var children = cutest.Children{
	"descriptor zero": childDescriptorZero,
}

func TestMain(m *testing.M) { cutest.Main(m, children) }
