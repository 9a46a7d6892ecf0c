package share

import (
	"testing"

	"github.com/gpufd/gpufd/cu/cutest"
)

var children = cutest.Children{
	"consumer":        childConsumer,
	"leaver":          childLeaver,
	"legacy owner":    childLegacyOwner,
	"legacy producer": childLegacyProducer,
	"freer":           childFreer,
	"producer":        childProducer,
	"reader":          childReader,
	"sleeper":         childSleeper,
	"successor":       childSuccessor,
	"writer":          childWriter,

	"runs out of addresses": childRunsOutOfAddresses,
	"poisoned consumer":     childPoisonedConsumer,
	"poisoned producer":     childPoisonedProducer,
}

func TestMain(m *testing.M) { cutest.Main(m, children) }
