package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// TestCompletion: bash completes each of the four programs with what the program prints
// for it.
func TestCompletion(t *testing.T) {
	cutest.ProvenOnSoft(t)
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	for program, lines := range map[string]map[string]string{
		"producer": {"--handle ": "vmm legacy", "--fill=g": "gpu", "-fill g": "gpu", "--con": "--connections --connections-per-peer --consumers"},
		"consumer": {"--access ": "ro rw", "--verify ": "gpu cpu", "--max": "--max-size"},
		"launch":   {"--builtin ": "pattern memory digest vector", "--kernel sax": "saxpy", "--li": "--list", "f": "f16: f32: f64:", "in:completion_t": "completion_test.go"},
		"ring":     {"--place ": "first spread", "--driver s": "soft", "--co": "--compat --completion"},
	} {
		t.Run(program, func(t *testing.T) {
			p := start(t, program, programPath(t, program), nil, "--completion", "bash")
			p.succeeds()
			script := strings.Join(p.out.all(), "\n")
			for line, want := range lines {
				c := exec.CommandContext(t.Context(), bash, "--norc", "-c", script+`
					COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
					__start_`+program+`
					echo "${COMPREPLY[@]%% *}"`, "bash", program+" "+line)
				c.Env = append(os.Environ(), "PATH="+filepath.Dir(programPath(t, program))+":"+os.Getenv("PATH"))
				out, err := c.Output()
				require.NoError(t, err, "%s", out)
				require.Equal(t, want, strings.TrimSpace(string(out)), line)
			}
		})
	}
}
