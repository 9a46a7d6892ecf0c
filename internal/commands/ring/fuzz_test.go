package ring

import (
	"testing"

	"github.com/gpufd/gpufd/internal/commands/apptest"
)

func FuzzArguments(f *testing.F) {
	apptest.FuzzArguments(f, New,
		"-procs 8 -steps 3 -size 4MiB -place first -v", "-procs 0", "-procs 65", "-procs -1", "-steps 0", "-steps x", "-size 0",
		"-place last", "-place spread", "-salt 0x10", "-salt 4294967296", "-salt -1", "-compat", "-compat -salt 0", "-module f", "-module=",
		"member", "member -driver soft")
}
