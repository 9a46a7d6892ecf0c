package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/internal/cli"
)

var nan = math.NaN()

// handoffs measures handoffs of each size and reports them.
func handoffs(ctx context.Context, o options, out io.Writer) (err error) {
	f, err := start(ctx, o.rivals, first, next)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	var all []*result
	for i, size := range o.sizes {
		more, err := f.also(ctx, size, o, &all, out)
		if err != nil {
			return err
		}
		if !more {
			o.sizes = o.sizes[:i]
			break
		}
	}
	r := &report.Report{
		Name:    "handoff",
		Machine: report.ThisMachine(),
		Text:    handoffText + strings.Join(f.started, "") + leftOut(f.absent),
		Raw:     raw(all),
	}
	for _, size := range o.sizes {
		for _, t := range f.turns {
			p := point{size, t}
			r.Tables = append(r.Tables, totals(all, p), parts(all, p))
			for _, name := range []string{ours, oursBefore} {
				r.Ratios = append(r.Ratios, ratio(all, name, p))
			}
		}
	}
	return r.Write(o.out, out)
}

// ratio is one of ours to C with the export done beforehand.
func ratio(all []*result, name string, p point) report.Ratio {
	r := report.Ratio{What: fmt.Sprintf("p50 of %s / %s, %s, %s of a turn", name, cBefore, cli.Human(p.size), p.turn), Got: nan}
	if us, c := of(all, name, p), of(all, cBefore, p); us != nil && c != nil {
		r.Got = us.p50() / c.p50()
	}
	return r
}

// also measures one size more. It reports false where time or memory is over, which is noted.
func (f *field) also(ctx context.Context, size uint64, o options, all *[]*result, out io.Writer) (bool, error) {
	if len(*all) > 0 && f.skip(cli.Human(size), o, nil) {
		return false, nil
	}
	results, err := f.measure(ctx, size, o)
	if err != nil {
		if f.skip(cli.Human(size), o, err) {
			err = nil
		}
		return false, err
	}
	say(out, results)
	*all = append(*all, results...)
	return true, nil
}

// totals is the table of one point.
func totals(all []*result, p point) report.Table {
	t := report.Table{
		Name:  "totals-" + label(p),
		Title: fmt.Sprintf("Handoff of %s, %s of a turn", cli.Human(p.size), p.turn),
		Head:  []string{"rival", "p50", "p95", "p99", "best", "times", "p50 against " + cBefore},
	}
	base := of(all, cBefore, p)
	for _, r := range at(all, p) {
		s, against := stats.Summarize(r.ns), ""
		if base != nil {
			against = report.Times(s.P50 / base.p50())
		}
		t.Rows = append(t.Rows, []string{r.rival, report.Duration(s.P50), tail(s.N, 20, s.P95), tail(s.N, 100, s.P99),
			report.Duration(s.Min), fmt.Sprint(s.N), against})
	}
	return t
}

// tail prints a quantile in the tail of n samples, if they are enough for one of
// them to lie behind it.
func tail(n, enough int, ns float64) string {
	if n < enough {
		ns = nan
	}
	return report.Duration(ns)
}

// stepOrder is the order of steps in tables, that of both sides.
var stepOrder = []string{"create", "receive", "receive-fd", "import", "reserve", "map", "access", "export", "write", "offer", "admit", "send",
	"attach", "ack", "reply", "close", "unmap", "release"}

// parts is the table of how long the steps of one point take.
func parts(all []*result, p point) report.Table {
	results := at(all, p)
	t := report.Table{
		Name:  "steps-" + label(p),
		Title: fmt.Sprintf("Steps of %s, %s of a turn", cli.Human(p.size), p.turn),
		Head:  []string{"side", "step"},
	}
	var names [][2]string
	for _, r := range results {
		t.Head = append(t.Head, r.rival)
		for _, s := range r.steps {
			if n := [2]string{s.side, s.name}; !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	slices.SortStableFunc(names, func(a, b [2]string) int {
		return cmp.Or(-strings.Compare(a[0], b[0]), // producers first
			slices.Index(stepOrder, a[1])-slices.Index(stepOrder, b[1]))
	})
	for _, n := range names {
		row := []string{n[0], n[1]}
		for _, r := range results {
			row = append(row, r.cell(n[0], n[1]))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func (r *result) cell(side, name string) string {
	for _, s := range r.steps {
		if s.side == side && s.name == name {
			return report.Duration(stats.Summarize(s.ns).P50)
		}
	}
	return ""
}

// raw is the quantiles of all handoffs and of their steps, and when each step begins (the median, from the
// buffer being ready).
func raw(all []*result) report.Table {
	t := report.Table{Head: []string{"rival", "size", "turn", "side", "step", "n", "at_p50_ns", "min_ns", "p25_ns", "p50_ns", "p75_ns", "p95_ns", "p99_ns", "max_ns"}}
	add := func(r *result, s step) {
		a, x := stats.Summarize(s.at), stats.Summarize(s.ns)
		row := []string{r.rival, fmt.Sprint(r.size), string(r.turn), s.side, s.name, fmt.Sprint(x.N), fmt.Sprintf("%.0f", a.P50)}
		for _, v := range []float64{x.Min, x.P25, x.P50, x.P75, x.P95, x.P99, x.Max} {
			row = append(row, fmt.Sprintf("%.0f", v))
		}
		t.Rows = append(t.Rows, row)
	}
	for _, r := range all {
		add(r, step{side: "both", name: "handoff", at: []float64{0}, ns: r.ns})
		for _, s := range r.steps {
			add(r, s)
		}
	}
	return t
}

// at is the results at a point.
func at(all []*result, p point) (some []*result) {
	for _, r := range all {
		if r.point == p {
			some = append(some, r)
		}
	}
	return some
}

func label(p point) string { return cli.Size(p.size).String() + "-" + string(p.turn) }

// say prints the results of a point at once.
func say(out io.Writer, results []*result) {
	for _, r := range results {
		s := stats.Summarize(r.ns)
		fmt.Fprintf(out, "%-12s %-16s p50 %9s  p95 %9s  best %9s  %d times\n", r.rival, label(r.point),
			report.Duration(s.P50), report.Duration(s.P95), report.Duration(s.Min), s.N)
	}
}
