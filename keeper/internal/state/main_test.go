package state

import (
	"os"
	"testing"

	"github.com/gpufd/gpufd/internal/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Check(m.Run)) }
