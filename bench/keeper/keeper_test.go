package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
)

func TestMain(m *testing.M) { cutest.Main(m) }

// Loading and attaching are measured, the latter beside C, whose driver is a stub that
// takes the software driver's files for memory. A rival that is not there has no ratio.
func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	gpufd, bare := filepath.Join(dir, "gpufd"), filepath.Join(dir, "attach")
	build(t, "go", "build", "-C", "../..", "-o", gpufd, "./cmd/gpufd")
	build(t, "gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-I../c/stub", "-o", bare, "../c/attach.c", "../c/stub/cuda.c")
	var told, complaint strings.Builder
	code := run([]string{"-driver", "soft", "-gpufd", gpufd, "-c", bare, "-load", "8MiB", "-attach", "4MiB",
		"-rounds", "2", "-dir", dir, "-out", dir}, &told, &complaint)
	require.Equal(t, cli.ExitOK, code, complaint.String())
	csv, err := os.ReadFile(filepath.Join(dir, "keeper.csv"))
	require.NoError(t, err)
	for what, n := range map[string]int{"load,": 2 * 2, "attach,": 2 * 40, "restart," + restart: 20} {
		require.Equal(t, n, strings.Count(string(csv), "\n"+what), what)
	}
	require.Contains(t, string(csv), shaken)
	require.Regexp(t, `loading, of load_file's time +\| +– +\|`, told.String())
	require.Regexp(t, `of the bare calls in C +\| +[0-9.]+× +\|`, told.String())
	left, err := filepath.Glob(filepath.Join(dir, "gpufd-bench*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func build(t *testing.T, argv ...string) {
	out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
	require.NoError(t, err, string(out))
}

// A rival that cannot do what it is asked is an error of the whole run.
func TestBareCallsFail(t *testing.T) {
	bare := filepath.Join(t.TempDir(), "attach")
	build(t, "gcc", "-O2", "-I../c/stub", "-o", bare, "../c/attach.c", "../c/stub/cuda.c")
	for call, when := range map[string]string{"cuInit": "start", "cuMemImportFromShareableHandle": "ask"} {
		t.Setenv("STUB_FAIL", call)
		r, err := rival.StartWith(t.Context(), "c", []*os.File{memory(t)}, bare)
		if when == "start" {
			require.ErrorContains(t, err, call)
			continue
		}
		require.NoError(t, err)
		_, err = r.Ask(t.Context(), "attach %d", 2<<20)
		require.ErrorContains(t, err, call)
		require.NoError(t, r.Close())
	}
}

func memory(t *testing.T) *os.File {
	f, err := os.CreateTemp(t.TempDir(), "memory")
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	require.NoError(t, f.Truncate(2<<20))
	return f
}
