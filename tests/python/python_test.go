package python

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// packageDir is the Python package, with its tests.
var packageDir = filepath.Join(programs.Root(), "python")

func TestMain(m *testing.M) { programs.Main(m, nil) }

// unittests runs the tests of a directory that are written in Python, among which are those.
// They have deadlines of their own.
func unittests(t *testing.T, interpreter string, env []string, dir string, names ...string) {
	t.Helper()
	out := scripted(t, env, interpreter, "-B", "-m", "unittest", "discover", "-v", "-s", dir)
	for _, name := range names {
		require.Contains(t, out, name)
	}
}

// scripted runs a program of Python's to its end, and returns what it said.
func scripted(t *testing.T, env []string, line ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(programs.ProgramEnv(), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", failures(string(out)))
	return string(out)
}

// failures is what unittest says of the tests that failed, behind a line for each test; or all of it.
func failures(out string) string {
	if i := strings.Index(out, "\n======"); i >= 0 {
		return out[i:]
	}
	return out
}

// TestPythonsOwn runs the tests of the programs in Python and C against peers of a later
// version, which are written in Python.
func TestPythonsOwn(t *testing.T) {
	unittests(t, programs.Python(t), nil, programs.PythonDir, "test_unknown_first", "test_unknown_after_mapped")
}

// TestPythonPackage runs the package's tests: the vectors, liars, the programs here in both
// directions, arrays, a stand-in for libcuda, types and the wheel.
func TestPythonPackage(t *testing.T) {
	cutest.ProvenOnSoft(t)
	if cutest.Emulated() {
		t.Skip("the interpreter is the machine's")
	}
	unittests(t, programs.Python(t, "numpy"), programs.Args("GPUFD_BIN="+filepath.Dir(programs.ProgramPath(t, "gpufd"))), filepath.Join(packageDir, "tests"),
		"test_valid_records", "test_foreign_records", "test_every_step_fails", "test_versions_parts_labels", "test_wheel", "test_types")
}

// TestPythonFrameworks has PyTorch, CuPy, numba and JAX take memory of the programs here, and
// sees what each does with the flag that it is read-only.
func TestPythonFrameworks(t *testing.T) {
	programs.NeedGPU(t, "frameworks take memory of one")
	cutest.Alone(t, "it looks at how much of the device's memory is free")
	t.Log(scripted(t, programs.Args("GPUFD_BIN="+filepath.Dir(programs.ProgramPath(t, "producer")), "GPUFD_DRIVER=cuda"),
		programs.Python(t), "-B", filepath.Join(packageDir, "tests", "gpu.py"), "-v"))
}

// TestPythonTransformers follows the recipes of docs/python-keeper.md, with a model of transformers.
func TestPythonTransformers(t *testing.T) {
	programs.NeedGPU(t, "models lie in memory of one")
	cutest.Alone(t, "it looks at how much of the device's memory PyTorch has")
	t.Log(scripted(t, programs.Args("GPUFD_BIN="+filepath.Dir(programs.ProgramPath(t, "gpufd")), "GPUFD_DRIVER=cuda"),
		programs.Python(t), "-B", filepath.Join(packageDir, "tests", "gpu_transformers.py"), "-v"))
}

// TestPythonChannels has streams of PyTorch and CuPy write and read frames, beside the programs here
// and the reader in C.
func TestPythonChannels(t *testing.T) {
	programs.NeedGPU(t, "streams of frameworks write and read frames")
	t.Log(scripted(t, programs.Args("GPUFD_BIN="+filepath.Dir(programs.ProgramPath(t, "gpufd")), "GPUFD_DRIVER=cuda"),
		programs.Python(t), "-B", filepath.Join(packageDir, "tests", "gpu_channel.py"), "-v"))
}

// TestPythonBroadcast has the keepers of two GPUs broadcast by NCCL, over NVLink and over sockets,
// and kills a rank at each step.
func TestPythonBroadcast(t *testing.T) {
	programs.NeedGPU(t, "NCCL moves memory of GPUs")
	cutest.TwoDevices(t, cutest.Driver(t))
	cutest.Alone(t, "it looks at how much of the devices' memory is in use")
	t.Log(scripted(t, programs.Args("GPUFD_BIN="+filepath.Dir(programs.ProgramPath(t, "gpufd")), "GPUFD_DRIVER=cuda"),
		programs.Python(t), "-B", filepath.Join(packageDir, "tests", "gpu_broadcast.py"), "-v"))
}
