package stats_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/stats"
)

func TestSummarize(t *testing.T) {
	for _, tt := range []struct {
		name string
		xs   []float64
		want stats.Summary
	}{
		{"none", nil, stats.Summary{}},
		{"one", []float64{7}, stats.Summary{N: 1, Min: 7, P25: 7, P50: 7, P75: 7, P95: 7, P99: 7, Max: 7}},
		{"two", []float64{20, 10}, stats.Summary{N: 2, Min: 10, P25: 12.5, P50: 15, P75: 17.5, P95: 19.5, P99: 19.9, Max: 20}},
		{"unsorted", []float64{5, 1, 4, 2, 3}, stats.Summary{N: 5, Min: 1, P25: 2, P50: 3, P75: 4, P95: 4.8, P99: 4.96, Max: 5}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := stats.Summarize(tt.xs)
			require.Equal(t, tt.want.N, got.N)
			for _, q := range [][2]float64{
				{tt.want.Min, got.Min}, {tt.want.P25, got.P25}, {tt.want.P50, got.P50}, {tt.want.P75, got.P75},
				{tt.want.P95, got.P95}, {tt.want.P99, got.P99}, {tt.want.Max, got.Max},
			} {
				require.InDelta(t, q[0], q[1], 1e-9, "%+v", got)
			}
		})
	}
}

func TestSummarizeLeavesTheSamplesInOrder(t *testing.T) {
	xs := []float64{3, 1, 2}
	stats.Summarize(xs)
	require.Equal(t, []float64{3, 1, 2}, xs)
}

func TestRatiosPair(t *testing.T) {
	require.Equal(t, []float64{2, 0.5}, stats.Ratios([]float64{4, 1}, []float64{2, 2}))
	require.Empty(t, stats.Ratios(nil, nil))
	require.Panics(t, func() { stats.Ratios([]float64{1}, nil) })
}

func TestExponent(t *testing.T) {
	xs := []float64{1, 10, 100, 1000}
	for _, c := range []struct {
		name string
		ys   []float64
		want float64
	}{
		{"linear", []float64{3, 30, 300, 3000}, 1},
		{"flat", []float64{7, 7, 7, 7}, 0},
		{"square, in the larger half alone", []float64{50, 50, 100, 10000}, 2},
		{"falling", []float64{1, 1, 10, 1}, -1},
	} {
		require.InDelta(t, c.want, stats.Exponent(xs, c.ys), 1e-9, c.name)
	}
	require.InDelta(t, 1, stats.Exponent([]float64{4, 1, 2}, []float64{8, 100, 4}), 1e-9, "in whatever order")
	require.InDelta(t, 0.5, stats.Exponent([]float64{1, 100}, []float64{1, 10}), 1e-9, "of two points")
	require.InDelta(t, 1.5, stats.Exponent([]float64{1, 1, 1, 2, 4}, []float64{9, 9, 1, 4, 8}), 1e-9, "of the three largest")
	for _, few := range [][]float64{nil, {5}, {5, 5}} {
		require.True(t, math.IsNaN(stats.Exponent(few, few)), few)
	}
	require.True(t, math.IsNaN(stats.Exponent([]float64{1, 2}, []float64{0, 1})), "nothing has no logarithm")
	require.Panics(t, func() { stats.Exponent(xs, xs[1:]) })
}
