package channel

import (
	"testing"

	"github.com/gpufd/gpufd/cu/cutest"
)

var children = cutest.Children{
	"reader": childReader,
	"writer": childWriter,

	"lost writer":    childLostWriter,
	"waiting writer": childWaitingWriter,
	"far reader":     childFarReader,

	"frames without system calls": childWithoutCalls,
}

func TestMain(m *testing.M) { cutest.Main(m, children) }
