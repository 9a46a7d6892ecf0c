package ring

import (
	"io"
	"testing"

	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/commands/apptest"
)

func FuzzArguments(f *testing.F) {
	apptest.FuzzArguments(f, func(w io.Writer) *app.App { return newRing(w).app },
		"-procs 8 -steps 3 -size 4MiB -place first -v", "-procs 0", "-procs 65", "-procs -1", "-steps 0", "-steps x", "-size 0",
		"-place last", "-place spread", "-salt 0x10", "-salt 4294967296", "-salt -1", "-compat", "-compat -salt 0", "-module f", "-module=",
		"member", "member -driver soft")
}
