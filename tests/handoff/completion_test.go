package handoff

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// TestCompletion: bash completes each of the four programs with what the program prints
// for it.
func TestCompletion(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	for program, lines := range map[string]map[string]string{
		"producer": {"--handle|": "vmm legacy", "--fill|g": "gpu", "--con": "--connections --connections-per-peer --consumers"},
		"consumer": {"--access|": "ro rw", "--verify|": "gpu cpu", "--max": "--max-size"},
		"launch":   {"--builtin|": "pattern memory digest vector", "--kernel|sax": "saxpy", "--li": "--list", "f": "f16: f32: f64:"},
		"ring":     {"--place|": "first spread", "--driver|s": "soft", "--co": "--compat --completion"},
	} {
		t.Run(program, func(t *testing.T) {
			p := programs.Start(t, program, programs.ProgramPath(t, program), nil, "--completion", "bash")
			p.Succeeds()
			script := strings.Join(p.Out.All(), "\n")
			for line, want := range lines {
				words := append(programs.Args("--norc", "-c", script+`
					COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
					_gpufd_$1
					echo "${COMPREPLY[@]}"`, "bash", program), strings.Split(line, "|")...)
				out, err := exec.CommandContext(t.Context(), bash, words...).CombinedOutput()
				require.NoError(t, err, "%s", out)
				require.Equal(t, want, strings.TrimSpace(string(out)), line)
			}
		})
	}
}
