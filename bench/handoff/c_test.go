package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/rival"
)

// cRival builds the rival in C, on a driver of its own, which fails as it is told.
func cRival(t *testing.T) (started func(fail string) *rival.Rival) {
	bin := filepath.Join(t.TempDir(), "c")
	out, err := exec.Command("gcc", "-O2", "-pthread", "-Wall", "-Wextra", "-Werror", "-I../c/stub", "-o", bin, "../c/handoff.c", "../c/stub/cuda.c").CombinedOutput()
	require.NoError(t, err, string(out))
	return func(fail string) *rival.Rival {
		t.Setenv("STUB_FAIL", fail)
		r, err := rival.Start(t.Context(), "c", bin)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		return r
	}
}

// Nobody runs hostfunc.c without a GPU.
func TestHostFuncCompiles(t *testing.T) {
	out, err := exec.Command("gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I../c/stub", "../c/hostfunc.c").CombinedOutput()
	require.NoError(t, err, string(out))
}

func TestCRival(t *testing.T) {
	r := cRival(t)("")
	for range 3 {
		a, err := r.Ask(t.Context(), "handoff %d", 8<<20)
		require.NoError(t, err)
		require.Positive(t, a.NS)
	}
}

// A failure is reported, and the next handoff can be tried unless the consumer is gone.
func TestCRivalThatFails(t *testing.T) {
	started := cRival(t)
	const request = "handoff 4194304"
	for fail, want := range map[string]string{
		"cuMemCreate":                    "rival c: cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of \"memory\"",
		"cuMemExportToShareableHandle":   "rival c: cuMemExportToShareableHandle: ",
		"cuMemImportFromShareableHandle": "rival c: consumer: cuMemImportFromShareableHandle: ",
		"cuMemcpyDtoH":                   "rival c: consumer: cuMemcpyDtoH of the first bytes: ",
		"salt":                           "rival c: salt: wrote ",
	} {
		r := started(fail)
		for range 2 {
			_, err := r.Ask(t.Context(), request)
			require.ErrorContains(t, err, want)
		}
	}
	r := started("die")
	_, err := r.Ask(t.Context(), request)
	require.ErrorContains(t, err, "the other process is gone")
	_, err = r.Ask(t.Context(), request)
	require.ErrorContains(t, err, "it ended: exit status 1")
}
