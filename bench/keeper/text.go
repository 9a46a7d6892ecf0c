package main

import (
	"fmt"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/internal/cli"
)

func makeReport(m report.Machine, s settings, loads samples, k kept) *report.Report {
	r := &report.Report{
		Name: "keeper", Machine: m,
		Text: "Loading is from a file in memory into a buffer that is there; starting threads and pinning count. Attaching is from connecting to mapped memory; the bare calls import a descriptor that the program has, reserve, map and set access. The ways take turns in every round, in rotating order.",
		Raw:  report.Table{Head: []string{"what", "way", "round", "ns"}},
	}
	ratios := report.Table{Title: "Ratios", Head: []string{"of", "measured"}, Rows: [][]string{
		{"loading, of what the link could do, as time", report.Times(stats.Ratio(loads[ours], loads[limit]))},
		{"loading, of load_file's time", report.Times(stats.Ratio(loads[ours], loads[loadFile]))},
		{"attaching, of the bare calls in C", report.Times(stats.Ratio(k.attaches[attach], k.attaches[bare]))},
		{"a reader's kernels while keepers die, of the same before", report.Times(stats.Summarize(k.restarts[shaken]).P50 / stats.Summarize(k.restarts[quiet]).P50)},
	}}
	load := report.Table{Title: "Loading " + s.load.String(), Head: []string{"way", "median", "best", "rate"}}
	for _, way := range []string{limit, ours, loadFile} {
		add(r, &load, "load", way, loads[way], func(ns float64) string { return fmt.Sprintf("%.1f GB/s", float64(s.load)/ns) })
	}
	att := report.Table{Title: "Attaching to " + s.attach.String(), Head: []string{"way", "median", "best", "99 %"}}
	for _, way := range []string{bare, attach} {
		p99 := stats.Summarize(k.attaches[way]).P99
		add(r, &att, "attach", way, k.attaches[way], func(float64) string { return report.Duration(p99) })
	}
	deaths := report.Table{Title: "Keepers killed", Head: []string{"what", "median", "best", "worst"},
		Text: fmt.Sprintf("%d keepers were killed under one reader, which resumed its lease each time. Its kernels, which read %s each, ran all the time, and always found the same bytes.", len(k.restarts[restart]), cli.Size(min(uint64(s.attach), once)))}
	for _, what := range []string{restart, quiet, shaken} {
		worst := stats.Summarize(k.restarts[what]).Max
		add(r, &deaths, "restart", what, k.restarts[what], func(float64) string { return report.Duration(worst) })
	}
	r.Tables = []report.Table{load, att, deaths, ratios}
	return r
}

// add writes a row, and its samples.
func add(r *report.Report, t *report.Table, what, way string, ns []float64, last func(median float64) string) {
	if len(ns) == 0 {
		t.Rows = append(t.Rows, []string{way, "not measured", "", ""})
		return
	}
	sum := stats.Summarize(ns)
	t.Rows = append(t.Rows, []string{way, report.Duration(sum.P50), report.Duration(sum.Min), last(sum.P50)})
	for i, v := range ns {
		r.Raw.Rows = append(r.Raw.Rows, []string{what, way, fmt.Sprint(i), fmt.Sprintf("%.0f", v)})
	}
}
