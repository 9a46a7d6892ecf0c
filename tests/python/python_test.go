package python

import (
	"cmp"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// packageTests has the tests of the Python package.
var packageTests = filepath.Join(programs.Root(), "python", "tests")

func TestMain(m *testing.M) { programs.Main(m, nil) }

// run runs a program in Python and returns its output. The tests in it have deadlines of their own.
func run(t *testing.T, dir string, env []string, line ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
	cmd.Dir, cmd.Env = dir, append(programs.ProgramEnv(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		_, failed, _ := strings.Cut("\n"+string(out), "\n======")
		t.Fatalf("%s: %v\n%s", cmd, err, cmp.Or(failed, string(out)))
	}
	return string(out)
}

// TestModules runs each module of tests in a process of its own: those of the package, and those
// of the programs in Python and C with peers of a later version.
//
//fault:rows 100 101 102
func TestModules(t *testing.T) {
	cutest.ProvenOnSoft(t)
	if cutest.Emulated() {
		t.Skip("the interpreter is the machine's")
	}
	python := programs.Python(t, "numpy")
	env := []string{"GPUFD_BIN=" + filepath.Dir(programs.ProgramPath(t, "gpufd"))}
	var files []string
	for _, dir := range []string{packageTests, programs.PythonDir} {
		found, err := filepath.Glob(filepath.Join(dir, "test_*.py"))
		require.NoError(t, err)
		require.NotEmpty(t, found, dir)
		files = append(files, found...)
	}
	compiled := []string{"-m", "compileall", "-q", filepath.Join(programs.Root(), "python", "gpufd"), packageTests, programs.PythonDir}
	if out, err := exec.CommandContext(t.Context(), python, compiled...).CombinedOutput(); err != nil {
		t.Logf("compileall: %v: each process compiles what it imports\n%s", err, out)
	}
	for _, name := range longest {
		require.True(t, slices.ContainsFunc(files, func(file string) bool { return moduleOf(file) == name }), "no file for %s", name)
	}
	slices.SortStableFunc(files, func(a, b string) int { return slices.Index(longest, moduleOf(a)) - slices.Index(longest, moduleOf(b)) })
	for _, file := range files {
		t.Run(moduleOf(file), func(t *testing.T) {
			programs.Parallel(t)
			out := run(t, filepath.Dir(file), env, python, "-B", "-m", "unittest", "-v", moduleOf(file))
			require.NotContains(t, out, "\nRan 0 tests")
			for line := range strings.Lines(out) {
				if strings.Contains(line, " ... skipped ") {
					t.Log(line)
				}
			}
		})
	}
}

// longest lists the modules that take longest, from 8 s on. TestModules puts them after the others.
var longest = []string{"test_aio", "test_anyorder", "test_model", "test_detach", "test_channelstreams", "test_liars", "test_programs", "test_serve", "test_broadcast"}

func moduleOf(file string) string { return strings.TrimSuffix(filepath.Base(file), ".py") }

// onGPU runs a program of tests in Python that takes a GPU.
func onGPU(t *testing.T, file string) {
	t.Helper()
	env := []string{"GPUFD_BIN=" + filepath.Dir(programs.ProgramPath(t, "gpufd")), "GPUFD_DRIVER=cuda"}
	t.Log(run(t, packageTests, env, programs.Python(t), "-B", file, "-v"))
}

// TestPythonFrameworks: PyTorch, CuPy, numba and JAX take memory of the programs here. It shows what
// each does with the flag that it is read-only.
func TestPythonFrameworks(t *testing.T) {
	programs.SkipOnSoft(t, "frameworks take memory of one")
	cutest.Alone(t, "it looks at how much of the device's memory is free")
	onGPU(t, "gpu.py")
}

// TestPythonTransformers keeps models of transformers, and follows the recipe of docs/python.md.
func TestPythonTransformers(t *testing.T) {
	programs.SkipOnSoft(t, "models lie in memory of one")
	cutest.Alone(t, "it looks at how much of the device's memory PyTorch has")
	onGPU(t, "gpu_transformers.py")
}

// TestPythonScripts runs the scripts of examples/python as users start them: restarts, engines, adapters,
// compiled models, handles, a pipeline.
func TestPythonScripts(t *testing.T) {
	programs.SkipOnSoft(t, "models of transformers lie in memory of one")
	cutest.Alone(t, "it looks at how much of the device's memory is free")
	onGPU(t, "gpu_scripts.py")
}

// TestPythonTensors hands tensors on: handles for queues, pools, swaps of a running model, frames.
func TestPythonTensors(t *testing.T) {
	programs.SkipOnSoft(t, "tensors lie in memory of one")
	cutest.Alone(t, "it looks at how much of the device's memory is free")
	for _, file := range []string{"gpu_handles.py", "gpu_pool.py", "gpu_swap.py", "gpu_frames.py", "gpu_detach.py"} {
		t.Run(file, func(t *testing.T) { onGPU(t, file) })
	}
}

// TestPythonSleep has engines sleep: graphs replay over the next version, a standby takes over, and the driver checkpoints a process.
func TestPythonSleep(t *testing.T) {
	programs.SkipOnSoft(t, "the driver checkpoints processes of one")
	cutest.Alone(t, "it looks at how much of the device's memory is free")
	for _, file := range []string{"gpu_sleep.py", "gpu_standby.py", "gpu_checkpoint.py", "gpu_park.py"} {
		t.Run(file, func(t *testing.T) { onGPU(t, file) })
	}
}

// TestPythonChannels has streams of PyTorch and CuPy write and read frames, beside the programs here
// and the reader in C.
func TestPythonChannels(t *testing.T) {
	programs.SkipOnSoft(t, "streams of frameworks write and read frames")
	onGPU(t, "gpu_channel.py")
}

// TestPythonWeights hands weights to engines after every step: all bits, by streams, in place, and when processes are killed.
//
//fault:rows 100 101
func TestPythonWeights(t *testing.T) {
	programs.SkipOnSoft(t, "streams of frameworks write and read weights")
	cutest.Alone(t, "it looks at how much of the device's memory is free")
	onGPU(t, "gpu_weights.py")
}

// TestPythonBroadcast has the keepers of two GPUs broadcast by NCCL, over NVLink and over sockets,
// and kills a rank at each step.
func TestPythonBroadcast(t *testing.T) {
	programs.SkipOnSoft(t, "NCCL moves memory of GPUs")
	cutest.TwoDevices(t, cutest.Driver(t))
	cutest.Alone(t, "it looks at how much of the devices' memory is in use")
	onGPU(t, "gpu_broadcast.py")
}
