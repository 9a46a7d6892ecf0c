package weights

import (
	"testing"

	"github.com/gpufd/gpufd/cu/cutest"
)

var children = cutest.Children{"publisher": childPublisher}

func TestMain(m *testing.M) { cutest.Main(m, children) }
