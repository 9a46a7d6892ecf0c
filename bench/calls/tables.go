//go:build cgo

package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/cu"
)

// launchLimit is how much longer than C's a launch may take.
const launchLimit = 1.10

// newReport is what was measured, for people and for programs.
func newReport(drv *cu.Driver, calls []call, cannot []string, r results) *report.Report {
	return &report.Report{
		Name:    "calls",
		Title:   title(drv),
		Text:    text(drv, cannot),
		Machine: report.MachineOf(drv),
		Raw:     raw(calls, r),
		Tables:  []report.Table{medians(calls, r), spread(calls, r)},
		Bars: []report.Bar{{
			Claim: "ours, raw / C: launch of an empty kernel, sustained, with the context bound",
			Limit: launchLimit,
			Got:   r.ratio(sustained, byRaw),
		}, {
			Claim: "ours, typed / C: the same, prepared",
			Limit: launchLimit,
			Got:   r.ratio(sustained, byTyped),
		}},
		Charts: charts(calls, r),
	}
}

func title(drv *cu.Driver) string {
	if drv.Kind() == cu.Soft {
		return "Driver calls, of the software driver"
	}
	return "Driver calls"
}

const explanation = `What calls of %s cost from Go, beside the same calls from C: in one process, in one context and on one stream.

- C: a loop in C, timed there.
- ours, raw: the methods of ` + "`sys.Caller`" + `, with the context bound in each call; cuDeviceGetAttribute needs none.
- ours, typed: package ` + "`cu`" + `; launches are prepared.
- cgo: one crossing a call, on a locked thread that has the context.
- cgo, any goroutine: the thread is locked and the context set in each call, as a binding must that gives its callers no rules.

The ways take turns in every round, in rotating order, and a ratio is the median of the ratios within the rounds. What was queued is
waited for outside the time, every %d calls; sustained are %d launches back to back and the wait for the last of them, all in the time.
Copies are from and to pinned memory.
`

func text(drv *cu.Driver, cannot []string) string {
	b := new(strings.Builder)
	if drv.Kind() == cu.Soft {
		fmt.Fprint(b, "**This is the software driver.** It shows that the program works, and nothing about a GPU.\n\n")
	}
	fmt.Fprintf(b, explanation, drv, queued, lasting)
	if len(cannot) > 0 {
		fmt.Fprintf(b, "\nNot measured, because this driver cannot: %s.\n", strings.Join(cannot, "; "))
	}
	return b.String()
}

// raw is a row for each sample.
func raw(calls []call, r results) report.Table {
	t := report.Table{Head: []string{"call", "way", "round", "ns"}}
	for _, c := range calls {
		for _, way := range wayNames {
			for round, ns := range r[c.name][way] {
				t.Rows = append(t.Rows, []string{c.name, way, strconv.Itoa(round), strconv.FormatFloat(ns, 'f', 2, 64)})
			}
		}
	}
	return t
}

// medians has a row for each call and a column for each way.
func medians(calls []call, r results) report.Table {
	t := report.Table{Title: "Medians", Text: "In brackets, times C.", Head: append([]string{"call"}, wayNames...)}
	for _, c := range calls {
		row := []string{c.name}
		for _, way := range wayNames {
			row = append(row, median(r, c.name, way))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func median(r results, call, way string) string {
	s, ok := r.summary(call, way)
	switch {
	case !ok:
		return ""
	case way == byC:
		return report.Duration(s.P50)
	}
	return fmt.Sprintf("%s (%s)", report.Duration(s.P50), report.Ratio(r.ratio(call, way)))
}

// spread has a row for each call and way.
func spread(calls []call, r results) report.Table {
	t := report.Table{
		Title: "Spread",
		Text:  "Of the rounds. \"More than C\" is the median of the differences within a round.",
		Head:  []string{"call", "way", "best", "P25", "median", "P75", "more than C"},
	}
	for _, c := range calls {
		for _, way := range wayNames {
			s, ok := r.summary(c.name, way)
			if !ok {
				continue
			}
			row := []string{c.name, way, report.Duration(s.Min), report.Duration(s.P25), report.Duration(s.P50), report.Duration(s.P75), ""}
			if way != byC {
				row[len(row)-1] = report.Duration(r.more(c.name, way))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// charts are the plots of ratios.
func charts(calls []call, r results) []report.Chart {
	var all []report.Chart
	for _, p := range []plot{asking, queueing, launching} {
		in := slices.DeleteFunc(slices.Clone(calls), func(c call) bool { return c.plot != p })
		all = append(all, chart(p, in, r))
	}
	return all
}

// chart has a group for each call and a bar for each way but C.
func chart(p plot, calls []call, r results) report.Chart {
	c := report.Chart{Name: p.name, Title: p.title + ", from Go", Y: "times C"}
	for _, call := range calls {
		c.Labels = append(c.Labels, call.label)
	}
	for _, way := range wayNames[1:] {
		s := report.Series{Name: way}
		for _, call := range calls {
			s.Y = append(s.Y, r.ratio(call.name, way))
		}
		if slices.ContainsFunc(s.Y, func(y float64) bool { return !math.IsNaN(y) }) {
			c.Series = append(c.Series, s)
		}
	}
	return c
}

// show prints the medians and the bars for whoever runs the program.
func show(w io.Writer, rep *report.Report, t report.Table) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range slices.Concat([][]string{t.Head}, t.Rows) {
		fmt.Fprintln(out, strings.Join(row, "\t"))
	}
	fmt.Fprintln(out)
	for _, b := range rep.Bars {
		verdict := "NOT met"
		switch {
		case math.IsNaN(b.Got):
			verdict = "not measured"
		case b.Met():
			verdict = "met"
		}
		fmt.Fprintf(out, "%s\tat most %.3g\tis %s\t%s\n", b.Claim, b.Limit, report.Ratio(b.Got), verdict)
	}
	return out.Flush()
}
