package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/rival"
)

// cRival builds the rival in C, on a driver of its own, which fails as it is told.
func cRival(t *testing.T) (started func(mode, fail string) *rival.Rival) {
	bin := filepath.Join(t.TempDir(), "c")
	out, err := exec.Command("gcc", "-O2", "-pthread", "-Wall", "-Wextra", "-Werror", "-I../c/stub", "-o", bin, "../c/handoff.c", "../c/stub/cuda.c").CombinedOutput()
	require.NoError(t, err, string(out))
	return func(mode, fail string) *rival.Rival {
		t.Setenv("STUB_FAIL", fail)
		r, err := rival.Start(t.Context(), "c", bin, "-mode", mode)
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

// Each mode does beforehand what it is said to, on one clock.
func TestCRival(t *testing.T) {
	started := cRival(t)
	for mode, chunks := range map[string][]int{"before": {1, 1, 3, 200}, "inside": {1, 1, 3, 200}, "legacy": {1, 1}} {
		r := started(mode, "")
		for _, n := range chunks {
			a, err := r.Ask(t.Context(), "handoff %d %d", n*granularity, n)
			require.NoError(t, err, mode)
			at := map[string]int64{}
			for _, s := range a.Steps {
				at[s.Side+" "+s.Name] = s.At
				if s.Name == "reply" {
					require.Equal(t, a.NS, s.At+s.NS, mode)
				}
			}
			require.Negative(t, at["producer create"], mode)
			require.Equal(t, mode == "before", at["producer export"] < 0, mode)
			require.Less(t, at["producer send"], at["consumer receive"], mode)
			require.Less(t, at["consumer import"], at["consumer ack"], mode)
			require.Equal(t, at["consumer ack"], at["producer reply"], mode)
		}
	}
	_, err := started("legacy", "").Ask(t.Context(), "handoff %d 2", 2*granularity)
	require.ErrorContains(t, err, "CHUNKS must be 1")
}

// A failure is reported, and the next handoff can be tried unless the consumer is gone.
func TestCRivalThatFails(t *testing.T) {
	started := cRival(t)
	const request = "handoff 419430400 200"
	for fail, want := range map[string]string{
		"cuMemCreate":                    "rival c: cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of \"memory\"",
		"cuMemExportToShareableHandle":   "rival c: cuMemExportToShareableHandle: ",
		"cuMemImportFromShareableHandle": "rival c: consumer: cuMemImportFromShareableHandle: ",
		"cuMemcpyDtoH":                   "rival c: consumer: cuMemcpyDtoH of the first bytes: ",
		"salt":                           "rival c: salt: wrote ",
	} {
		r := started("before", fail)
		for range 2 {
			_, err := r.Ask(t.Context(), request)
			require.ErrorContains(t, err, want)
		}
	}
	r := started("inside", "die")
	_, err := r.Ask(t.Context(), request)
	require.ErrorContains(t, err, "the other process is gone")
	_, err = r.Ask(t.Context(), request)
	require.ErrorContains(t, err, "it ended: exit status 1")
}
