package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/internal/cli"
)

// Every number of names and readers is measured, and nothing is left behind.
func TestGrowth(t *testing.T) {
	dir := t.TempDir()
	gpufd := filepath.Join(dir, "gpufd")
	build(t, "go", "build", "-C", "../..", "-o", gpufd, "./cmd/gpufd")
	var told, complaint strings.Builder
	grow := func(more ...string) string {
		told.Reset()
		code := run(append([]string{"-growth", "-driver", "soft", "-gpufd", gpufd, "-names", "6", "-readers", "5", "-rounds", "2", "-out", dir}, more...), &told, &complaint)
		require.Equal(t, cli.ExitOK, code, complaint.String())
		return told.String()
	}
	text := grow()
	require.Contains(t, text, "## With so many names")
	csv, err := os.ReadFile(filepath.Join(dir, "keeper-growth.csv"))
	require.NoError(t, err)
	for what, n := range map[string]int{"names,1,put,": 4, "names,4,list,": 4, "names,6,attach,": 4, "names,6,restart,": 2, "readers,5,all attach,": 2, "readers,4,put beside them,": 2} {
		require.Equal(t, n, strings.Count(string(csv), "\n"+what), what)
	}

	text = grow("-budget", "1ns")
	require.Contains(t, text, "4 names and more were left out: the time for all of it was over.")
}

func TestGrowing(t *testing.T) {
	g := newGrowing("names", "list")
	c := crowd{}
	for _, n := range points(64) {
		require.True(t, c.next(g, n))
		g.add(n, "list", time.Duration(n*n)*time.Microsecond)
	}
	r := &report.Report{}
	g.report(r, "Names", "")
	require.Equal(t, [][]string{{"1", "1.00 µs"}, {"4", "16.0 µs"}, {"16", "256 µs"}, {"64", "4.10 ms"}}, r.Tables[0].Rows)
	require.Len(t, r.Raw.Rows, 4)
	require.Equal(t, []int{1, 4, 16, 64, 256, 1000}, points(1000))
	require.Equal(t, []int{1}, points(1))
}
