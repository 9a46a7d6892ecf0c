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
	dir := t.TempDir() // of the file that in: completes
	require.NoError(t, os.WriteFile(filepath.Join(dir, "weights"), nil, 0o600))
	for program, lines := range map[string]map[string]string{
		"producer": {"--handle ": "vmm legacy", "--fill=g": "gpu", "-fill g": "gpu", "--con": "--connections --connections-per-peer --consumers"},
		"consumer": {"--access ": "ro rw", "--verify ": "gpu cpu", "--max": "--max-size"},
		"launch":   {"--builtin ": "pattern memory digest vector", "--kernel sax": "saxpy", "--li": "--list", "f": "f16: f32: f64:", "in:wei": "weights"},
		"ring":     {"--place ": "first spread", "--driver s": "soft", "--co": "--compat --completion"},
	} {
		t.Run(program, func(t *testing.T) {
			path, err := filepath.Abs(programPath(t, program))
			require.NoError(t, err)
			p := start(t, program, path, nil, "--completion", "bash")
			p.succeeds()
			script := strings.Join(p.out.all(), "\n")
			for line, want := range lines {
				c := exec.CommandContext(t.Context(), bash, "--norc", "-c", script+`
					COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
					__start_`+program+`
					echo "${COMPREPLY[@]%% *}"`, "bash", program+" "+line)
				c.Dir, c.Env = dir, append(os.Environ(), "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"))
				out, err := c.Output()
				require.NoError(t, err, "%s", out)
				require.Equal(t, want, strings.TrimSpace(string(out)), line)
			}
		})
	}
}
