package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/stats"
)

// results are what all ways took.
type results struct {
	ways    []way
	rounds  int
	samples []sample
}

// index is the place of the way of that name, or -1.
func (r results) index(name string) int {
	return slices.IndexFunc(r.ways, func(w way) bool { return w.name == name })
}

// times are the nanoseconds per call of each round.
func (r results) times(f form, way int) []float64 {
	xs := make([]float64, r.rounds)
	for _, s := range r.samples {
		if s.form == f && s.way == way {
			xs[s.round] = s.perCall()
		}
	}
	return xs
}

// allocs is the most allocations per call of any round.
func (r results) allocs(f form, way int) (most uint64) {
	for _, s := range r.samples {
		if s.form == f && s.way == way {
			most = max(most, s.allocs())
		}
	}
	return most
}

// ratio is the median of what way took in each round to what the way named
// base took in the same; not a number if that was not measured.
func (r results) ratio(f form, way int, base string) float64 {
	b := r.index(base)
	if b < 0 {
		return math.NaN()
	}
	return stats.Summarize(stats.Ratios(r.times(f, way), r.times(f, b))).P50
}

// report is the results for people and as CSV.
func (r results) report() *report.Report {
	return &report.Report{
		Name: reportName, Text: text, Machine: report.ThisMachine(), Raw: r.raw(), Tables: []report.Table{r.table()}, Ratios: r.ratios(),
	}
}

// raw is a row for each sample.
func (r results) raw() report.Table {
	t := report.Table{Head: []string{"arguments", "way", "round", "calls", "ns_per_call", "mallocs", "allocs_per_call"}}
	for _, s := range r.samples {
		t.Rows = append(t.Rows, []string{
			s.form.String(), r.ways[s.way].name, fmt.Sprint(s.round), fmt.Sprint(s.n),
			fmt.Sprintf("%.3f", s.perCall()), fmt.Sprint(s.mallocs), fmt.Sprint(s.allocs()),
		})
	}
	return t
}

// table is a row for each form and way.
func (r results) table() report.Table {
	t := report.Table{
		Name: "calls", Title: "One call",
		Text: fmt.Sprintf("Rounds: %d. The ratio is the median of the ratios within each round.", r.rounds),
		Head: []string{"arguments", "way", "median", "best", "P25–P75", "worst", "allocations", "to " + baseWay},
	}
	for f := range numForms {
		for i, w := range r.ways {
			s := stats.Summarize(r.times(f, i))
			t.Rows = append(t.Rows, []string{
				f.String(), w.name, report.Duration(s.P50), report.Duration(s.Min),
				report.Duration(s.P25) + " – " + report.Duration(s.P75), report.Duration(s.Max),
				fmt.Sprint(r.allocs(f, i)), report.Times(r.ratio(f, i, baseWay)),
			})
		}
	}
	return t
}
