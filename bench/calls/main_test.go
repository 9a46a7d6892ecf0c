//go:build cgo

package main

import (
	"bytes"
	"encoding/csv"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/cu/cutest"
)

func TestMain(m *testing.M) { cutest.Main(m) }

// called runs the program in this process.
func called(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(args, &out, &err)
	return code, out.String(), err.String()
}

func TestReportOfTheSoftwareDriver(t *testing.T) {
	dir := t.TempDir()
	code, stdout, stderr := called("-driver", "soft", "-rounds", "2", "-time", "0", "-out", dir)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "software driver")
	require.Contains(t, stdout, "cuStreamQuery")
	require.Contains(t, stdout, "launch of an empty kernel, sustained")

	text, err := os.ReadFile(filepath.Join(dir, "calls.md"))
	require.NoError(t, err)
	drv, err := program.Open("soft")
	require.NoError(t, err)
	cannot := lacking(drv)
	if len(cannot) > 0 {
		require.Contains(t, string(text), "cannot: "+strings.Join(cannot, "; ")+".")
	}
	for _, want := range []string{
		"# Driver calls, of the software driver", "**This is the software driver.**",
		"![Calls that queue work, from Go](calls-queueing.svg)",
	} {
		require.Contains(t, string(text), want)
	}
	f, err := os.Open(filepath.Join(dir, "calls.csv"))
	require.NoError(t, err)
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	require.Equal(t, []string{"call", "way", "round", "ns"}, rows[0])
	require.Len(t, rows[1:], 2*(2*3+(13-len(cannot))*4+3*5), "rounds × calls × ways")
	require.Equal(t, []string{"cuDeviceGetAttribute", "C", "0"}, rows[1][:3])
}

func TestWithoutADriver(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "-1") // where there is one
	code, stdout, stderr := called("-out", t.TempDir())
	require.Equal(t, 3, code)
	require.Empty(t, stdout)
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	require.True(t, strings.HasPrefix(stderr, "calls: "), stderr)
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-driver", "auto"}, {"-rounds", "0"}, {"-time", "-1s"}, {"-nosuch"}, {"more"}} {
		code, _, stderr := called(args...)
		require.Equal(t, 2, code, args)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
	code, stdout, _ := called("-h")
	require.Zero(t, code)
	require.Contains(t, stdout, "-rounds")
}

func TestADirectoryThatCannotBeMade(t *testing.T) {
	code, stdout, stderr := called("-driver", "soft", "-rounds", "1", "-time", "0", "-out", "/dev/null/here")
	require.Equal(t, 1, code)
	require.Contains(t, stdout, "cuStreamQuery", "the table is printed before it is written")
	require.Contains(t, stderr, "/dev/null")
}
