//go:build cgo

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each way makes the call that it says, or its time means nothing.
func TestEveryWayPassesEveryArgument(t *testing.T) {
	for _, w := range makeWays() {
		for _, n := range []int{1, 2, 100} {
			require.EqualValues(t, want, w.run(n), "%s, %d calls", w.name, n)
		}
	}
}

func TestMeasureTakesTurns(t *testing.T) {
	var order []string
	ways := make([]way, 3)
	for i, name := range []string{"a", "b", "c"} {
		ways[i] = way{name, func(n int) uint64 {
			if n != 16 { // which warm up
				order = append(order, name)
			}
			for start := time.Now(); time.Since(start) < time.Duration(n)*time.Microsecond; {
			}
			return 0
		}}
	}
	samples := measure(ways, 4, 50*time.Microsecond)
	for _, of := range samples {
		require.Len(t, of, 4)
		for _, s := range of {
			require.GreaterOrEqual(t, s.perCall(), 1000.0)
		}
	}
	require.True(t, strings.HasSuffix(strings.Join(order, ""), "abcbcacababc"), order)
}

// Our own way does not allocate, theirs are counted.
func TestAllocationsAreCounted(t *testing.T) {
	ways := makeWays()
	require.Equal(t, ours, ways[0].name)
	require.Zero(t, once(ways[0].run, 2000).allocs())
	require.Positive(t, once(ways[len(ways)-1].run, 2000).allocs())
}

func TestRunWritesTheReport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"-rounds", "2", "-time", "50us", "-out", dir}, &stdout, &stderr), stderr.String())
	require.Empty(t, stderr.String())
	require.Contains(t, stdout.String(), plainCgo)
	csv, err := os.ReadFile(filepath.Join(dir, "crossing.csv"))
	require.NoError(t, err)
	require.Equal(t, 1+2*len(makeWays()), bytes.Count(csv, []byte("\n")))
}

func TestFlags(t *testing.T) {
	for name, tt := range map[string]struct {
		args   []string
		code   int
		stderr string
	}{
		"no rounds": {[]string{"-rounds", "0"}, 2, "at least one round"},
		"no time":   {[]string{"-time", "0s"}, 2, "some time"},
		"no such":   {[]string{"-rounds", "1", "-time", "1us", "-out", "/dev/null/x"}, 1, "/dev/null"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, tt.code, run(tt.args, &stdout, &stderr))
			require.Contains(t, stderr.String(), tt.stderr)
		})
	}
}
