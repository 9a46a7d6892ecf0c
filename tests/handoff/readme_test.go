package handoff

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// TestReadmesProgram: the Go program in README.md compiles as it stands, and prints what
// README.md says, on the driver of these tests and where there is no GPU.
func TestReadmesProgram(t *testing.T) {
	programs.Parallel(t)
	ctx, cancel := context.WithTimeout(t.Context(), programs.Patience)
	defer cancel()
	readme, program := readmesProgram(ctx, t)
	run := func(env ...string) string {
		cmd := exec.CommandContext(ctx, program)
		cmd.Dir = t.TempDir() // its socket is there
		cmd.Env = append(programs.ProgramEnv(), env...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	printed := func(pattern, out string) {
		line := regexp.MustCompile(pattern).FindString(readme)
		require.NotEmpty(t, line, "README.md does not say what it prints: %s", pattern)
		require.Equal(t, machines.ReplaceAllString(line, "…")+"\n", machines.ReplaceAllString(out, "…"))
	}
	const onSoft, onGPU = `software driver \(CUDA [^\]\n]+\]`, `libcuda\.so\.1 \(CUDA [^\]\n]+\]`
	printed(map[cu.Kind]string{cu.Soft: onSoft, cu.CUDA: onGPU}[cutest.Kind()], run("GPUFD_DRIVER="+programs.KindName()))
	noGPU := run(fakeLibcuda(t, map[string]answer{"cuInit": returns(100)})...)
	require.Contains(t, noGPU, "libcuda sees no GPU")
	printed(onSoft, noGPU)
}

// machines matches what a driver's name has of the machine: where libcuda lies, the version,
// and why it is the software driver.
var machines = regexp.MustCompile(`\S+ \(CUDA \d+\.\d\)(: [^\[]+)?`)

// readmesProgram returns README.md and the program in it, compiled.
func readmesProgram(ctx context.Context, t *testing.T) (readme, program string) {
	t.Helper()
	_, noGo := exec.LookPath("go")
	if _, err := os.Stat(filepath.Join(programs.Root(), "go.mod")); err != nil || noGo != nil {
		t.Skip("takes Go and the sources of gpufd")
	}
	b := ok(os.ReadFile(filepath.Join(programs.Root(), "README.md")))(t)
	blocks := regexp.MustCompile("(?s)```go\n(package main\n.+?)```").FindAllStringSubmatch(string(b), -1)
	require.Len(t, blocks, 1, "programs in README.md")
	source := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(source, []byte(blocks[0][1]), 0o600))
	program = strings.TrimSuffix(source, ".go")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOPROXY=off", "GOARCH="+runtime.GOARCH)
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(b), program
}
