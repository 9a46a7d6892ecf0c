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

func TestRatio(t *testing.T) {
	require.InDelta(t, 1.25, stats.Ratio([]float64{4, 1}, []float64{2, 2}), 1e-9)
	require.True(t, math.IsNaN(stats.Ratio(nil, nil)))
	require.True(t, math.IsNaN(stats.Ratio([]float64{1}, nil)))
}
