package vmm_test

import (
	"testing"

	"github.com/gpufd/gpufd/cu/cutest"
)

var children = cutest.Children{
	"reads and writes":     childReadsAndWrites,
	"must not write":       childMustNotWrite,
	"launches a writer":    childLaunchesAWriter,
	"tells its generation": childTellsGeneration,
	"hoards":               childHoards,
	"fabric owner":         childFabricOwner,
	"fabric importer":      childFabricImporter,
	"waits for memory":     childWaits,
	"shares host memory":   childSharesHostMemory,
	"no host memory":       childNoHostMemory,
}

func TestMain(m *testing.M) { cutest.Main(m, children) }
