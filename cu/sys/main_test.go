package sys

import (
	"os"
	"testing"

	"github.com/gpufd/gpufd/internal/testenv/leak"
)

// TestMain fails when the tests leave a descriptor open or a goroutine running
// (invariant 3).
func TestMain(m *testing.M) { os.Exit(leak.Check(m.Run)) }
