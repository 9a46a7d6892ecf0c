package main

import (
	"fmt"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/bench/internal/stats"
)

const about = "An engine detaches from another process's memory, which unmaps and releases it and keeps its lease, and reattaches at the same address: " +
	"it connects, is given the descriptors again, imports and maps. C makes the bare calls alone: it has descriptors and a reservation, " +
	"imports, maps and sets access; and it unmaps and releases. The rivals take turns, and each has memory of its own.\n\n"

// makeReport compares the first rival with each of the others.
func makeReport(field *rival.Field, rivals rival.Commands, sizes shapes, got measured) *report.Report {
	r := &report.Report{
		Name: "sleep", Machine: report.ThisMachine(), Text: about + field.Text(),
		Raw: report.Table{Head: []string{"what", "rival", "chunks", "bytes", "round", "ns"}},
	}
	for _, what := range []string{"reattach", "detach"} {
		t := report.Table{Title: what, Head: []string{"memory", "rival", "median", "best", "99 %", "worst", "ours, of its time"}}
		for _, s := range sizes {
			ours := got[s][rivals[0].Name].of(what)
			for _, c := range rivals {
				ns := got[s][c.Name].of(what)
				t.Rows = append(t.Rows, cells(s, c.Name, ns, ours))
				for i, v := range ns {
					r.Raw.Rows = append(r.Raw.Rows, []string{what, c.Name, fmt.Sprint(s.count), fmt.Sprint(s.size), fmt.Sprint(i), fmt.Sprintf("%.0f", v)})
				}
			}
		}
		r.Tables = append(r.Tables, t)
	}
	return r
}

// of returns the samples of what.
func (s *series) of(what string) []float64 {
	if what == "detach" {
		return s.detach
	}
	return s.reattach
}

// cells returns a row.
func cells(s shape, name string, ns, ours []float64) []string {
	if len(ns) == 0 {
		return []string{s.String(), name, "not measured", "", "", "", ""}
	}
	sum := stats.Summarize(ns)
	return []string{
		s.String(), name, report.Duration(sum.P50), report.Duration(sum.Min), report.Duration(sum.P99), report.Duration(sum.Max),
		report.Times(stats.Ratio(ours, ns)),
	}
}
