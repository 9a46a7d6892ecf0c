package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/rival"
)

// built builds a program of bench/c, and a stub of the library that it opens.
func built(t *testing.T, name string) (program string) {
	t.Helper()
	dir := t.TempDir()
	library := []string{"-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-I../c/stub", "-o", filepath.Join(dir, "libcuda.so.1"), "../c/stub/cuda.c", "../c/stub/host.c"}
	for _, renamed := range []string{"cuMemsetD8", "cuMemcpyDtoH", "cuMemcpyHtoD"} { // as the library exports them
		library = append(library, "-D"+renamed+"="+renamed+"_v2")
	}
	program = filepath.Join(dir, name)
	for _, args := range [][]string{library, {"-Wall", "-Wextra", "-Werror", "-o", program, "../c/" + name + ".c"}} {
		out, err := exec.Command("gcc", append([]string{"-O2"}, args...)...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	t.Setenv("LD_LIBRARY_PATH", dir)
	return program
}

// remap maps as often as it is asked, in whatever shapes, and says what cannot be.
func TestRemap(t *testing.T) {
	r, err := rival.Start(t.Context(), "c", built(t, "remap"))
	require.NoError(t, err)
	for _, shape := range []string{"3 4194304", "3 4194304", "74 2097152", "1 2097152"} {
		a, err := r.Ask(t.Context(), "remap %s", shape)
		require.NoError(t, err)
		require.Len(t, a.Each, 2)
		require.Positive(t, a.Each[0])
		require.Positive(t, a.Each[1])
	}
	for _, nonsense := range []string{"remap", "remap 0 1", "remap 1025 1", "handoff 1"} {
		_, err = r.Ask(t.Context(), nonsense)
		require.ErrorContains(t, err, "want remap COUNT SIZE")
	}
	require.NoError(t, r.Close())
}

// A call that fails in either process is the answer.
func TestRemapFails(t *testing.T) {
	program := built(t, "remap")
	for _, call := range []string{"cuMemCreate", "cuMemImportFromShareableHandle", "cuMemSetAccess", "cuMemUnmap"} {
		t.Setenv("STUB_FAIL", call)
		r, err := rival.Start(t.Context(), "c", program)
		require.NoError(t, err)
		_, err = r.Ask(t.Context(), "remap 2 2097152")
		require.ErrorContains(t, err, call+": CUDA_ERROR_OUT_OF_MEMORY")
		require.Error(t, r.Close(), "it has ended")
	}
	t.Setenv("STUB_FAIL", "cuInit")
	_, err := rival.Start(t.Context(), "c", program)
	require.ErrorContains(t, err, "cuInit: CUDA_ERROR_OUT_OF_MEMORY")
}

// link says what fails; its rates take gibibytes.
func TestLinkFails(t *testing.T) {
	program := built(t, "link")
	t.Setenv("STUB_FAIL", "cuMemCreate")
	out, err := exec.Command(program, "1").Output()
	require.Error(t, err)
	require.Equal(t, `{"error":"cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"}`+"\n", string(out))
	require.Error(t, exec.Command(program, "0").Run())
}
