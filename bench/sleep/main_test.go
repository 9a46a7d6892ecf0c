package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
)

// The test binary is the program, if its arguments say so: an engine starts its producer by them.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-as" {
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	cutest.Main(m)
}

// Ours and C take turns, each in all shapes, and the report has the ratio.
func TestMeasure(t *testing.T) {
	dir, c := t.TempDir(), built(t, "remap")
	var told, complaint strings.Builder
	code := run([]string{"-rival", "gpufd=" + os.Args[0] + ",-as,engine,-driver,soft", "-rival", "c=" + c, "-rival", "none=/nonexistent",
		"-shapes", "3x4MiB,1x2MiB", "-rounds", "4", "-out", dir}, os.Stdin, &told, &complaint)
	require.Equal(t, cli.ExitOK, code, "%s", &complaint)
	csv, err := os.ReadFile(filepath.Join(dir, "sleep.csv"))
	require.NoError(t, err)
	for _, samples := range []string{"reattach,gpufd,3,4194304,", "detach,gpufd,1,2097152,", "reattach,c,1,2097152,", "detach,c,3,4194304,"} {
		require.Equal(t, 4, strings.Count(string(csv), "\n"+samples), samples)
	}
	require.Regexp(t, `\| 3 × 4MiB +\| c +\| [0-9.]+ \S+ +\| .*[0-9.]+× +\|`, told.String())
	require.Regexp(t, `\| 1 × 2MiB +\| none +\| not measured`, told.String())
	require.Contains(t, told.String(), "rival none: fork/exec /nonexistent")
}

// A shape that there is no room for is the rival's answer, and ours has to run.
func TestNoRoom(t *testing.T) {
	r, err := rival.Start(t.Context(), "gpufd", os.Args[0], "-as", "engine", "-driver", "soft")
	require.NoError(t, err)
	_, err = r.Ask(t.Context(), "remap 4 %d", uint64(1)<<40)
	require.ErrorContains(t, err, "CUDA_ERROR_OUT_OF_MEMORY")
	a, err := r.Ask(t.Context(), "remap 2 2097152")
	require.NoError(t, err)
	require.Len(t, a.Each, 2)
	require.NoError(t, r.Close())
	var told, complaint strings.Builder
	require.Equal(t, cli.ExitFailed, run([]string{"-rival", "gpufd=" + os.Args[0] + ",-as,engine,-driver,soft", "-shapes", "4x1TiB"}, os.Stdin, &told, &complaint))
	require.Contains(t, complaint.String(), "CUDA_ERROR_OUT_OF_MEMORY")
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"-rival", "x=y", "-rounds", "0"}, {"-shapes", "3"}, {"-shapes", "0x1GiB"}, {"-shapes", "1xnothing"}, {"-as", "king"}} {
		var told, complaint strings.Builder
		require.Equal(t, cli.ExitUsage, run(args, os.Stdin, &told, &complaint), args)
	}
}
