package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
)

func TestMain(m *testing.M) { cutest.Main(m) }

// Each call is measured in each way, and nothing is left behind.
func TestMeasure(t *testing.T) {
	free := freeMemory(t)
	dir := t.TempDir()
	var out, complaint strings.Builder
	require.Equal(t, cli.ExitOK, run([]string{"-driver", "soft", "-chunks", "3,8", "-rounds", "2", "-out", dir}, &out, &complaint), complaint.String())
	csv, err := os.ReadFile(filepath.Join(dir, "chunks.csv"))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(csv)), "\n")
	// create, map, access and unmap in two ways, export and import in three, release
	const subjects = 1 + 1 + 2*2 + 2*3 + 1
	require.Len(t, strings.Split(strings.TrimSpace(out.String()), "\n"), 2*subjects)
	require.Len(t, lines, 1+2*(2*subjects+2), "mapping is measured twice a round")
	require.FileExists(t, filepath.Join(dir, "chunks.md"))
	require.Equal(t, free, freeMemory(t))
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
	} {
		var out, complaint strings.Builder
		require.Equal(t, cli.ExitUsage, run(args, &out, &complaint), args)
		require.Equal(t, 1, strings.Count(complaint.String(), "\n"), complaint.String())
	}
	var out strings.Builder
	require.Equal(t, cli.ExitOK, run([]string{"-h"}, &out, &out))
	require.Contains(t, out.String(), "-chunks")
}
