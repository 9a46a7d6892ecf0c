package examples

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// The two programs that are compared with NVIDIA's samples stay short, do their work, and refuse
// what they cannot do with an error that says what it is.
func TestWholePrograms(t *testing.T) {
	for _, p := range []struct {
		name, verdict string
		most          int // lines
	}{
		{"vector-add", "every sum is right\n", 120},
		{"mem-map-ipc", "parent: the child has doubled all 1000 elements\n", 130},
	} {
		t.Run(p.name, func(t *testing.T) {
			source, err := os.ReadFile(filepath.Join(p.name, "main.go"))
			require.NoError(t, err)
			require.LessOrEqual(t, bytes.Count(source, []byte("\n")), p.most)
			program := filepath.Join(build(t, "./"+p.name), p.name)
			code, out := runWith(t, program, "-n", "1000")
			require.Zero(t, code, out)
			require.Contains(t, out, p.verdict)
			for _, c := range []struct {
				code int
				says string
				args []string
			}{
				{2, "want -n from 1 to", []string{"-n", "0"}},
				{2, "want -n from 1 to", []string{"-n", "1000000000"}},
				{2, `"more"`, []string{"more"}},
				{2, "invalid value", []string{"-n", "many"}},
				{1, "no device 99 here", []string{"-device", "99"}},
			} {
				code, out := runWith(t, program, c.args...)
				require.Equal(t, c.code, code, "%q: %s", c.args, out)
				require.Contains(t, out, c.says, "%q", c.args)
			}
		})
	}
}

// A child that finds no parent says so and fails.
func TestMemMapIPCChildWithoutParent(t *testing.T) {
	program := filepath.Join(build(t, "./mem-map-ipc"), "mem-map-ipc")
	code, out := runWith(t, program, "-child", filepath.Join(t.TempDir(), "nobody"))
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "nobody is listening there")
}

// runWith runs a program to its end and returns its exit status and all that it printed.
func runWith(t *testing.T, program string, args ...string) (code int, out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "GPUFD_DRIVER="+cutest.Kind().String())
	b, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), string(b)
}
