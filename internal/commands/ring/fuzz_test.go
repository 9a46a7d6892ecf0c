package ring

import (
	"io"
	"testing"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/cli/clitest"
)

func FuzzArguments(f *testing.F) {
	clitest.FuzzArguments(f, func(w io.Writer) *cli.App { return newRing(w).app },
		"-procs 8 -steps 3 -size 4MiB -place first -v", "-procs 0", "-procs 65", "-procs -1", "-steps 0", "-steps x", "-size 0",
		"-place last", "-place spread", "-salt 0x10", "-salt 4294967296", "-salt -1", "-compat", "-compat -salt 0", "-module f", "-module=",
		"member", "member -driver soft")
}
