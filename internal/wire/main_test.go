package wire

import (
	"os"
	"testing"

	"github.com/gpufd/gpufd/internal/testenv/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Check(m.Run)) }
