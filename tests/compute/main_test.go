package compute

import (
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"
)

func TestMain(m *testing.M) { programs.Main(m, nil) }
