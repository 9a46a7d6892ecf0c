// Package stats summarises samples.
package stats

import (
	"cmp"
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

// Ratios returns xs[i]/ys[i] for each i, which must pair samples of the same
// round. It panics if there are not as many of both.
func Ratios(xs, ys []float64) []float64 {
	if len(xs) != len(ys) {
		panic("stats: Ratios of samples that do not pair")
	}
	rs := make([]float64, len(xs))
	for i := range xs {
		rs[i] = xs[i] / ys[i]
	}
	return rs
}

// Exponent returns how ys grow with xs: the slope of log y over log x, by least squares
// over the larger half of the points, where what each measurement costs once counts
// least. 1 is linear, and 0 does not grow. It is not a number for fewer than two
// points, and for points that a logarithm cannot show.
func Exponent(xs, ys []float64) float64 {
	if len(xs) != len(ys) {
		panic("stats: Exponent of samples that do not pair")
	}
	order := make([]int, len(xs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(xs[a], xs[b]) })
	if half := max(2, (len(order)+1)/2); half < len(order) {
		order = order[len(order)-half:]
	}
	var n, x, y, xx, xy float64
	for _, i := range order {
		lx, ly := math.Log(xs[i]), math.Log(ys[i])
		n, x, y, xx, xy = n+1, x+lx, y+ly, xx+lx*lx, xy+lx*ly
	}
	slope := (n*xy - x*y) / (n*xx - x*x)
	if math.IsInf(slope, 0) {
		return math.NaN()
	}
	return slope
}
