//go:build cgo

package main

import (
	"errors"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// noted is a way that takes a microsecond a call and notes its name.
func noted(name string, notes *[]string) way {
	return way{name, func(n int) (time.Duration, error) {
		*notes = append(*notes, name+" "+strconv.Itoa(n))
		return time.Duration(n) * time.Microsecond, nil
	}}
}

func TestWaysTakeTurns(t *testing.T) {
	var notes []string
	c := call{name: "call", batch: 10, ways: []way{noted("a", &notes), noted("b", &notes), noted("c", &notes)}}
	p := plan{rounds: 3, time: time.Microsecond, drain: func() error { return nil }}
	r, err := p.measure([]call{c})
	require.NoError(t, err)
	require.Equal(t, []string{
		"a 10", "b 10", "c 10", // not counted
		"a 10", "b 10", "c 10", "b 10", "c 10", "a 10", "c 10", "a 10", "b 10",
	}, notes)
	require.Equal(t, results{"call": {"a": {1e3, 1e3, 1e3}, "b": {1e3, 1e3, 1e3}, "c": {1e3, 1e3, 1e3}}}, r)
}

// Each batch begins with an idle stream, and the last leaves one.
func TestStreamIsDrainedBetweenBatches(t *testing.T) {
	var notes []string
	p := plan{drain: func() error { notes = append(notes, "drain"); return nil }}
	ns, err := p.batches(call{batch: 10}, noted("a", &notes), 25*time.Microsecond)
	require.NoError(t, err)
	require.Equal(t, 1e3, ns)
	require.Equal(t, []string{"drain", "a 10", "drain", "a 10", "drain", "a 10", "drain"}, notes)
}

func TestFailuresNameCallAndWay(t *testing.T) {
	broken := errors.New("broken")
	c := call{name: "cuNothing", batch: 1, ways: []way{{byRaw, func(int) (time.Duration, error) { return 0, broken }}}}
	p := plan{rounds: 1, drain: func() error { return nil }}
	_, err := p.measure([]call{c})
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "cuNothing by ours, raw")

	c.ways[0] = noted(byRaw, new([]string))
	p.drain = func() error { return broken }
	_, err = p.measure([]call{c})
	require.ErrorIs(t, err, broken)
}

// The ratio is the median of the rounds' and not that of medians.
func TestRatiosAreOfTheSameRound(t *testing.T) {
	r := results{"call": {byC: {100, 1000, 400}, byRaw: {110, 1100, 480}}}
	require.InDelta(t, 1.1, r.ratio("call", byRaw), 1e-9)
	require.InDelta(t, 80, r.more("call", byRaw), 1e-9)
	require.True(t, math.IsNaN(r.ratio("call", byTyped)))
}
