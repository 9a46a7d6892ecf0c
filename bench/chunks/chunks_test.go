package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
)

// TestMain is the importer that the tests start, or the tests.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-importer") {
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	cutest.Main(m)
}

// Each call is measured in each way, and what consumers do beside C, whose driver is a stub that
// takes the software driver's files for memory. Nothing is left behind.
func TestMeasure(t *testing.T) {
	free := freeMemory(t)
	dir := t.TempDir()
	c := rivalInC(t)
	var out, complaint strings.Builder
	require.Equal(t, cli.ExitOK, run([]string{"-driver", "soft", "-c", c, "-chunks", "3,8", "-rounds", "2", "-out", dir}, nil, &out, &complaint), complaint.String())
	csv, err := os.ReadFile(filepath.Join(dir, "chunks.csv"))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(csv)), "\n")
	// create, map, access and unmap in two ways, export and import in three, release
	const subjects = 1 + 1 + 2*2 + 2*3 + 1
	require.Len(t, strings.Split(strings.TrimSpace(out.String()), "\n"), 2*subjects+3*len(wholeSteps))
	steps := 2 * 2 * len(wholeSteps) * (32/3 + 32/8) // rounds, ways
	require.Len(t, lines, 1+2*(2*subjects+2)+steps, "mapping is measured twice a round")
	text, err := os.ReadFile(filepath.Join(dir, "chunks.md"))
	require.NoError(t, err)
	for _, claim := range []string{"p50 of attach, chunks: 3, of C's", "p50 of unmap, chunks: 8, of C's", "exponent of close over chunks, against C's if it is above 1"} {
		require.Regexp(t, `\| `+claim+` +\| +1[^|]+\| +[-0-9.]+ \|`, string(text))
	}
	require.Equal(t, free, freeMemory(t))
}

// A rival that cannot start is said to be missing, and what it would measure has no bar that is met.
func TestWithoutC(t *testing.T) {
	dir := t.TempDir()
	var out, complaint strings.Builder
	require.Equal(t, cli.ExitOK, run([]string{"-driver", "soft", "-c", "/bin/false", "-chunks", "2", "-rounds", "3", "-budget", "1ns", "-out", dir}, nil, &out, &complaint), complaint.String())
	text, err := os.ReadFile(filepath.Join(dir, "chunks.md"))
	require.NoError(t, err)
	require.Contains(t, string(text), "\n\nC was not measured: rival C: it ended: exit status 1.\n")
	require.Regexp(t, `\| p50 of attach, chunks: 2, of C's +\| +1.1 \| +– +\| not measured \|`, string(text))
	csv, err := os.ReadFile(filepath.Join(dir, "chunks.csv"))
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(csv), "cuMemRelease"), "one round: the time was over")
}

// What the rival in C fails with is an error of the whole run.
func TestCFails(t *testing.T) {
	c := rivalInC(t)
	for _, call := range []string{"cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"} {
		t.Setenv("STUB_FAIL", call)
		var out, complaint strings.Builder
		require.Equal(t, cli.ExitFailed, run([]string{"-driver", "soft", "-c", c, "-chunks", "2", "-rounds", "1"}, nil, &out, &complaint))
		require.Contains(t, complaint.String(), "rival C: "+call)
	}
}

func rivalInC(t *testing.T) string {
	bin := filepath.Join(t.TempDir(), "c")
	out, err := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-I../c/stub", "-o", bin, "../c/chunks.c", "../c/stub/cuda.c").CombinedOutput()
	require.NoError(t, err, string(out))
	return bin
}

func TestRotated(t *testing.T) {
	require.Equal(t, []int{1, 2, 4}, rotated([]int{1, 2, 4}, 0))
	require.Equal(t, []int{4, 1, 2}, rotated([]int{1, 2, 4}, 5))
}

func freeMemory(t *testing.T) uint64 {
	free, _, err := cutest.Context(t, cutest.Device(t)).MemInfo()
	require.NoError(t, err)
	return free
}

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{
		{"-driver", "vulkan"}, {"-chunks", "0"}, {"-chunks", "2,x"}, {"-rounds", "0"}, {"more"}, {"-nope"},
		{"-chunks", "4097"}, {"-budget", "-1s"},
	} {
		var out, complaint strings.Builder
		require.Equal(t, cli.ExitUsage, run(args, nil, &out, &complaint), args)
		require.Equal(t, 1, strings.Count(complaint.String(), "\n"), complaint.String())
	}
	var out strings.Builder
	require.Equal(t, cli.ExitOK, run([]string{"-h"}, nil, &out, &out))
	require.Contains(t, out.String(), "-chunks")
}
