package cu_test

import (
	"testing"

	"github.com/gpufd/gpufd/cu/cutest"
)

var children = cutest.Children{
	"descriptor zero":    childDescriptorZero,
	"lost pinned memory": childLostPinnedMemory,
	"pool exporter":      childPoolExporter,
	"pool importer":      childPoolImporter,
	"ipc peer":           childIPCPeer,
	"sleeper":            childSleeper,

	"closes while it waits":    childClosesWhileItWaits,
	"takes turns":              childTakesTurns,
	"streams that wait":        childStreamsWait,
	"lose contexts":            childLoseContexts,
	"reset primary":            childResetPrimary,
	"no peer access":           childNoPeerAccess,
	"open the software driver": childOpenSoft,

	"host function in a lost context": childHostFunction,
}

func TestMain(m *testing.M) { cutest.Main(m, children) }
