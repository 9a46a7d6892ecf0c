// Package stats summarises samples.
package stats

import (
	"math"
	"slices"
)

// A Summary is the quantiles of some samples, in their unit.
type Summary struct {
	N                                 int
	Min, P25, P50, P75, P95, P99, Max float64
}

// Summarize returns the quantiles of xs, which it does not change; between two
// samples they are interpolated linearly. Of no samples it is the zero Summary.
func Summarize(xs []float64) Summary {
	if len(xs) == 0 {
		return Summary{}
	}
	s := slices.Sorted(slices.Values(xs))
	return Summary{
		N:   len(s),
		Min: s[0],
		P25: quantile(s, 0.25),
		P50: quantile(s, 0.50),
		P75: quantile(s, 0.75),
		P95: quantile(s, 0.95),
		P99: quantile(s, 0.99),
		Max: s[len(s)-1],
	}
}

// quantile is the value below which the part q of the sorted samples s lies.
func quantile(s []float64, q float64) float64 {
	at := q * float64(len(s)-1)
	low := math.Floor(at)
	i := int(low)
	if i == len(s)-1 {
		return s[i]
	}
	return s[i] + (at-low)*(s[i+1]-s[i])
}

// Ratio returns the median of xs[i]/ys[i], which must pair samples of the same round; not a number if there are none,
// or not as many of both.
func Ratio(xs, ys []float64) float64 {
	if len(xs) == 0 || len(xs) != len(ys) {
		return math.NaN()
	}
	rs := make([]float64, len(xs))
	for i := range xs {
		rs[i] = xs[i] / ys[i]
	}
	return Summarize(rs).P50
}
