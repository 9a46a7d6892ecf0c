package main

import (
	"bytes"
	"encoding/csv"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func waysOfTest(t *testing.T) []way {
	ways, err := makeWays()
	require.NoError(t, err)
	return ways
}

// Each way makes the call that it says, or its time means nothing.
func TestEveryWayPassesEveryArgument(t *testing.T) {
	for _, w := range waysOfTest(t) {
		for f, run := range w.run {
			for _, n := range []int{1, 2, 100} {
				require.Equal(t, want[f], run(n), "%s, arguments %v, %d calls", w.name, form(f), n)
			}
		}
	}
}

func TestCheckNamesTheWayThatIsWrong(t *testing.T) {
	ways := waysOfTest(t)
	require.NoError(t, check(ways))
	ways[1].run[eleven] = func(int) uint64 { return 12345 }
	require.ErrorContains(t, check(ways), ways[1].name+", arguments 11: C gave 12345")

	ways = waysOfTest(t)
	ways[1].name = oursPlain
	if reportName == "crossing" { // libc does not show the context
		require.ErrorContains(t, check(ways), oursPlain+": is the context set? true")
	}
}

// fake are ways whose calls take as long as they are told.
func fake(took ...time.Duration) []way {
	ways := make([]way, len(took))
	for i, d := range took {
		ways[i].name = string(rune('a' + i))
		for f := range ways[i].run {
			ways[i].run[f] = func(n int) uint64 {
				for start := time.Now(); time.Since(start) < d*time.Duration(n); {
				}
				return 0
			}
		}
	}
	return ways
}

func TestMeasureInterleavesAndRotates(t *testing.T) {
	ways := fake(time.Microsecond, time.Microsecond, time.Microsecond)
	samples := measure(ways, 4, 50*time.Microsecond)
	require.Len(t, samples, 4*int(numForms)*3)
	for i, s := range samples {
		require.Equal(t, i/(3*int(numForms)), s.round)
		require.Equal(t, form(i/3%int(numForms)), s.form)
		require.Equal(t, (i%3+s.round)%3, s.way)
		require.Positive(t, s.n)
		require.GreaterOrEqual(t, s.perCall(), 1000.0)
	}
}

func TestSamplesSumUp(t *testing.T) {
	r := results{ways: []way{{name: "one"}, {name: "other"}}, rounds: 3, samples: []sample{
		{form: four, way: 0, round: 0, n: 10, took: 300}, {form: four, way: 1, round: 0, n: 10, took: 100, mallocs: 9},
		{form: four, way: 1, round: 1, n: 10, took: 100, mallocs: 25}, {form: four, way: 0, round: 1, n: 20, took: 400},
		{form: four, way: 0, round: 2, n: 10, took: 1000}, {form: four, way: 1, round: 2, n: 10, took: 1000},
	}}
	require.Equal(t, []float64{30, 20, 100}, r.times(four, 0))
	require.EqualValues(t, 0, r.allocs(four, 0))
	require.EqualValues(t, 2, r.allocs(four, 1))
	require.InDelta(t, 2, r.ratio(four, 0, "other"), 1e-9, "the median of 3, 2 and 1")
	require.True(t, math.IsNaN(r.ratio(four, 0, "nobody")))
}

// Our own ways do not allocate, theirs are counted.
func TestAllocationsAreCounted(t *testing.T) {
	ways := waysOfTest(t)
	r := results{ways: ways}
	for _, name := range []string{oursPlain, oursContext} {
		for f, run := range ways[r.index(name)].run {
			require.Zero(t, once(run, 2000).allocs(), "%s, arguments %v", name, form(f))
		}
	}
	require.Positive(t, once(ways[r.index(byType)].run[four], 2000).allocs())
}

func TestRunWritesTheReport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"-rounds", "2", "-time", "50us", "-out", dir}, &stdout, &stderr), stderr.String())
	require.Empty(t, stderr.String())
	require.Contains(t, stdout.String(), oursContext)
	require.Contains(t, stdout.String(), "allocations of ours")

	f, err := os.Open(filepath.Join(dir, reportName+".csv"))
	require.NoError(t, err)
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 1+2*int(numForms)*len(waysOfTest(t)))
}

func TestFlags(t *testing.T) {
	for name, tt := range map[string]struct {
		args   []string
		code   int
		stderr string
	}{
		"unknown":   {[]string{"-fast"}, 2, "not defined"},
		"no rounds": {[]string{"-rounds", "0"}, 2, "at least one round"},
		"no time":   {[]string{"-time", "0s"}, 2, "some time"},
		"no such":   {[]string{"-rounds", "1", "-time", "1us", "-out", "/dev/null/x"}, 1, "/dev/null"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, tt.code, run(tt.args, &stdout, &stderr))
			require.Contains(t, stderr.String(), tt.stderr)
			require.Equal(t, tt.code == 1, stdout.Len() > 0, "the table is printed before it is written")
		})
	}
}
