package app

import (
	"testing"

	"github.com/gpufd/gpufd/cu/cutest"
)

func TestMain(m *testing.M) { cutest.Main(m) }
