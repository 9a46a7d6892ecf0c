package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/internal/cli"
)

// why measures rivals that differ by one thing from each other, and reports by how
// much their times differ, and where.
func why(ctx context.Context, o options) (err error) {
	f, err := start(ctx, o.rivals, first, next)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	f.shuffle = rand.New(rand.NewPCG(1, 2)) // what a rival leaves behind is to hit all others alike
	var all []*result
	r := &report.Report{Name: o.name, Title: "Why one handoff takes longer than another", Machine: report.ThisMachine()}
	for _, size := range o.sizes {
		results, err := f.measure(ctx, size, 1, o)
		if err != nil {
			return err
		}
		say(results)
		all = append(all, results...)
		for _, t := range f.turns {
			r.Tables = append(r.Tables, differences(results, point{size, 1, t}))
		}
	}
	facts, err := schedule(ctx, f.rivals, o)
	if err != nil {
		return err
	}
	r.Text, r.Raw = whyText+legend(f.rivals)+leftOut(f.absent), raw(all)
	r.Tables = append(r.Tables, facts)
	return r.Write(o.out)
}

// legend says what each rival is for.
func legend(rivals []*rival.Rival) string {
	var b strings.Builder
	for _, r := range rivals {
		if what := isolates[r.Name]; what != "" {
			fmt.Fprintf(&b, "- **%s**: %s.\n", r.Name, what)
		}
	}
	return b.String()
}

// differences is the table of one point: how much longer each rival takes than C, and
// than the one above it.
func differences(all []*result, p point) report.Table {
	t := report.Table{
		Name:  "why-" + label(p),
		Title: fmt.Sprintf("%s, %s of a turn", cli.Human(p.size), p.turn),
		Head: []string{"rival", "p50", "more than " + cBefore, "than above", "p25", "arrive", "work", "reply",
			"import", "reserve", "map", "access", "calls", "times"},
	}
	base, above := of(all, cBefore, p), (*result)(nil)
	for _, r := range at(all, p) {
		s := stats.Summarize(r.ns)
		row := []string{r.rival, report.Duration(s.P50), r.more(base), r.more(above), report.Duration(s.P25)}
		for _, xs := range r.legs() {
			row = append(row, median(xs))
		}
		for _, name := range imports {
			row = append(row, r.cell("consumer", name))
		}
		t.Rows = append(t.Rows, append(row, median(r.calls()), fmt.Sprint(s.N)))
		above = r
	}
	return t
}

// more is by how many µs the p50 is larger than other's.
func (r *result) more(other *result) string {
	if other == nil {
		return ""
	}
	return fmt.Sprintf("%+.1f", (r.p50()-other.p50())/1e3)
}

func median(ns []float64) string { return report.Duration(stats.Summarize(ns).P50) }

// known is the step of that name, if each handoff had one.
func (r *result) known(side string, names ...string) *step {
	for i := range r.steps {
		if s := &r.steps[i]; s.side == side && slices.Contains(names, s.name) && len(s.ns) == len(r.ns) {
			return s
		}
	}
	return nil
}

// legs splits each handoff into what went before the offer's arrival at the consumer,
// what it did until it acknowledged, and the way of that.
func (r *result) legs() (legs [3][]float64) {
	arrival, reply := r.known("consumer", "receive", "attach"), r.known("producer", "reply")
	if arrival == nil || reply == nil {
		return legs
	}
	for i, ns := range r.ns {
		legs[0] = append(legs[0], arrival.at[i])
		legs[1] = append(legs[1], reply.at[i]-arrival.at[i])
		legs[2] = append(legs[2], ns-reply.at[i])
	}
	return legs
}

// calls is what the driver calls of the import took together.
func (r *result) calls() []float64 {
	sums := make([]float64, len(r.ns))
	for _, name := range imports {
		s := r.known("consumer", name)
		if s == nil {
			return nil
		}
		for i, ns := range s.ns {
			sums[i] += ns
		}
	}
	return sums
}
