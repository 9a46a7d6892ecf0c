package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/internal/cli"
)

var nan = math.NaN()

// chunked are the rivals whose buffers may be of several chunks.
var chunked = []string{ours, oursBefore, cBefore, cInside}

// growth measures how the handoff grows with size, chunks and consumers, and
// what the start of the processes adds.
func growth(ctx context.Context, o options) error {
	r := &report.Report{
		Name:    "growth",
		Title:   "How the handoff grows",
		Machine: report.ThisMachine(),
		Text:    growthText,
		Raw:     report.Table{Text: "The quantiles of the handoffs are in", Head: []string{"what", "rival", "size", "chunks", "consumers", "n", "p50_ns", "p95_ns", "max_ns"}},
	}
	for _, part := range []struct {
		budget  float64 // of the whole
		measure func(context.Context, options, *report.Report) error
	}{{0.35, bySizeAndChunks}, {0.4, byConsumers}, {0.07, fromStart}, {0.18, freshConsumers}} {
		o.until = o.deadline(part.budget)
		if err := part.measure(ctx, o, r); err != nil {
			return err
		}
	}
	return r.Write(o.out)
}

// bySizeAndChunks runs the rivals over sizes in one chunk, and over chunks of
// the smallest size.
func bySizeAndChunks(ctx context.Context, o options, r *report.Report) (err error) {
	f, err := start(ctx, o.rivals, first)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	var sizes, chunks []*result
	whole := o.until
	o.until = o.deadline(0.2)
	if err := f.bySize(ctx, o, &sizes); err != nil {
		return err
	}
	o.until = whole
	f.rivals = slices.DeleteFunc(f.rivals, func(r *rival.Rival) bool { return !slices.Contains(chunked, r.Name) })
	for more, n := true, 1; more && n <= o.chunks; n *= 4 {
		if more, err = f.also(ctx, fmt.Sprintf("%d chunks", n), uint64(n)*granularity, uint64(n), o, &chunks); err != nil {
			return err
		}
	}
	r.Text += strings.Join(f.started, "") + leftOut(f.absent)
	r.Bars = append(r.Bars, slices.Concat(exponentBars("size", sizes, bySize), exponentBars("chunks", chunks, byChunks))...)
	r.Tables = append(r.Tables, grid("size", "Handoff by size, one chunk", sizes), grid("chunks", "Handoff by chunks of 2 MiB", chunks))
	r.Charts = append(r.Charts,
		chart(sizes, "size", "Handoff by size, p50", "bytes handed over, bytes", bySize, first),
		chart(chunks, "chunks", "Handoff by chunks, p50", "chunks of 2 MiB", byChunks, first))
	for _, x := range slices.Concat(sizes, chunks) {
		addRaw(r, "size and chunks", x.rival, x.point, 1, x.ns)
	}
	return nil
}

// bySize measures sizes up to the largest, or to half of the first that does not fit the device.
func (f *field) bySize(ctx context.Context, o options, all *[]*result) error {
	largest, last := uint64(o.largest), uint64(0)
	for size := uint64(granularity); last < largest; size = min(4*size, largest) {
		more, err := f.also(ctx, cli.Human(size), size, 1, o, all)
		if err == nil && !more && !o.over() && size/2 > last {
			_, err = f.also(ctx, cli.Human(size/2), size/2, 1, o, all)
		}
		if err != nil || !more {
			return err
		}
		last = size
	}
	return nil
}

// also measures a point, too. It reports false where time or memory is over, which is noted.
func (f *field) also(ctx context.Context, what string, size, chunks uint64, o options, all *[]*result) (bool, error) {
	if len(*all) > 0 && f.skip(what, o, nil) {
		return false, nil
	}
	results, err := f.measure(ctx, size, chunks, o)
	if err != nil {
		if f.skip(what, o, err) {
			err = nil
		}
		return false, err
	}
	say(results)
	*all = append(*all, results...)
	return true, nil
}

// exponent is how the p50 of a rival grows with x, and whether there is such a rival.
func exponent(all []*result, name string, x func(point) float64) float64 {
	var xs, ys []float64
	for _, r := range all {
		if r.rival == name {
			xs, ys = append(xs, x(r.point)), append(ys, r.p50())
		}
	}
	return stats.Exponent(xs, ys)
}

// exponentBars hold the growth of ours against C's.
func exponentBars(what string, all []*result, x func(point) float64) (bars []report.Bar) {
	c := exponent(all, cBefore, x)
	for _, name := range []string{ours, oursBefore} {
		bars = append(bars, report.Bar{
			Claim: fmt.Sprintf("exponent of %s's time over %s, against that of %s if it is above 1", name, what, cBefore),
			Limit: stats.LinearLimit(c), Got: exponent(all, name, x),
		})
	}
	return bars
}

func addRaw(r *report.Report, what, rival string, p point, consumers int, ns []float64) {
	s := stats.Summarize(ns)
	r.Raw.Rows = append(r.Raw.Rows, []string{what, rival, fmt.Sprint(p.size), fmt.Sprint(p.chunks), fmt.Sprint(consumers),
		fmt.Sprint(s.N), fmt.Sprintf("%.0f", s.P50), fmt.Sprintf("%.0f", s.P95), fmt.Sprintf("%.0f", s.Max)})
}

// exponentText says what a table's last row is.
const exponentText = "The exponent is the slope of log time over log %s, by least squares over the larger half of the points: 1 is linear, 0 is flat."

// grid is a table of points by rivals, and their exponents.
func grid(name, title string, all []*result) report.Table {
	t := report.Table{Name: name, Title: title, Text: fmt.Sprintf(exponentText, name), Head: []string{name}}
	var points []point
	for _, r := range all {
		if !slices.Contains(points, r.point) {
			points = append(points, r.point)
		}
		if !slices.Contains(t.Head, r.rival) {
			t.Head = append(t.Head, r.rival)
		}
	}
	for _, p := range points {
		row := []string{cli.Human(p.size)}
		if name == "chunks" {
			row = []string{fmt.Sprint(p.chunks)}
		}
		for _, rival := range t.Head[1:] {
			cell := ""
			if r := of(all, rival, p); r != nil {
				cell = report.Duration(r.p50())
			}
			row = append(row, cell)
		}
		t.Rows = append(t.Rows, row)
	}
	last, x := []string{"exponent"}, bySize
	if name == "chunks" {
		x = byChunks
	}
	for _, rival := range t.Head[1:] {
		last = append(last, report.Exponent(exponent(all, rival, x)))
	}
	t.Rows = append(t.Rows, last)
	return t
}

// imports are the steps of a consumer that make up one import.
var imports = []string{"import", "reserve", "map", "access"}

// A fan is a handoff to several consumers at once.
type fan struct {
	consumers int
	all       []float64 // until the last has the memory
	imports   []float64 // of each consumer
	exports   int       // that the driver was asked for after the buffer was ready
}

// A crowd is consumers of one kind, more and more of them.
type crowd struct {
	kind    string
	context bool // each has one
	most    int
	fans    []fan
	absent  []string // what was left out, and why
}

// mostContexts is how many consumers take a context, which is about half a GiB of
// device memory each.
const mostContexts = 64

// byConsumers hands one buffer to more and more consumers of ours at once.
func byConsumers(ctx context.Context, o options, r *report.Report) error {
	crowds := []crowd{
		{kind: "with a context", context: true, most: min(mostContexts, o.consumers)},
		{kind: "without a context", most: o.consumers},
	}
	whole := o.until
	for i := range crowds {
		if o.until = whole; i == 0 {
			o.until = o.deadline(0.22)
		}
		if err := crowds[i].measure(ctx, o, r); err != nil {
			return err
		}
	}
	reportCrowds(r, crowds)
	return nil
}

// measure starts a producer of its own, so that the consumers of one kind make
// room for those of another.
func (c *crowd) measure(ctx context.Context, o options, r *report.Report) (err error) {
	us := o.rivals[0]
	f, err := start(ctx, commands{{us.name, append(slices.Clone(us.argv), fmt.Sprintf("-context=%v", c.context))}}, first)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	for n := 1; n <= c.most; n *= 2 {
		if n > 1 && f.skip(fmt.Sprintf("%d consumers", n), o, nil) {
			c.absent = f.absent
			break
		}
		x, err := f.fan(ctx, n, o)
		if err != nil && n > 1 && f.skip(fmt.Sprintf("%d consumers", n), o, err) {
			c.absent = f.absent
			break
		}
		if err != nil {
			return err
		}
		fmt.Printf("%-12s %4d consumers %-17s  p50 %s\n", us.name, n, c.kind, report.Duration(stats.Summarize(x.all).P50))
		addRaw(r, "consumers "+c.kind, us.name, point{granularity, 1, first}, n, x.all)
		c.fans = append(c.fans, x)
	}
	return nil
}

// fanTimes is how often each number of consumers is tried.
const fanTimes = 20

func (f *field) fan(ctx context.Context, n int, o options) (fan, error) {
	x := fan{consumers: n}
	for i := -warmups(granularity); i < min(fanTimes, o.iterations) && (i < 1 || !o.over()); i++ {
		a, err := ask(ctx, f.rivals[0], "fanout %d %d", granularity, n)
		if err != nil {
			return x, err
		}
		if i >= 0 {
			x.add(a)
		}
	}
	return x, nil
}

func (x *fan) add(a rival.Answer) {
	x.all = append(x.all, float64(a.NS))
	sum := 0.0
	for _, s := range a.Steps {
		switch {
		case s.Side == "consumer" && slices.Contains(imports, s.Name):
			sum += float64(s.NS)
		case s.Name == "export" && s.At >= 0:
			x.exports++
		}
	}
	x.imports = append(x.imports, sum/float64(x.consumers))
}

// crowdText is what is to be known of consumers with a context, and without.
var crowdText = map[bool]string{
	true: "Ours only, which exports beforehand, and imports inside the time. The time until the last has it mapped; what each consumer adds to the time for one; " +
		"and its own steps of import, map and access, which wait for each other in the driver. All hold the memory until the last has it.",
	false: "The same with consumers that take no context, of which there can be more: a context takes about half a GiB of device memory. " +
		"Without one they cannot look at the data, and the driver takes longer for the same steps.",
}

func reportCrowds(r *report.Report, crowds []crowd) {
	all := report.Chart{Name: "consumers", Title: "One buffer to several consumers at once, p50", X: "consumers", Y: "time, ns", LogX: true, LogY: true}
	for _, c := range crowds {
		t, s, added, exports := c.report()
		r.Tables, all.Series = append(r.Tables, t), append(all.Series, s)
		r.Bars = append(r.Bars,
			report.Bar{Claim: fmt.Sprintf("what one of %d consumers %s adds, against one import by a single one", c.fans[len(c.fans)-1].consumers, c.kind),
				Limit: 1.2, Got: added / stats.Summarize(c.fans[0].imports).P50},
			report.Bar{Claim: fmt.Sprintf("exponent of the time over consumers %s", c.kind), Limit: stats.LinearLimit(nan), Got: stats.Exponent(s.X, s.Y)},
			report.Bar{Claim: fmt.Sprintf("exports by the driver while consumers %s attach", c.kind), Limit: 0, Got: float64(exports)})
	}
	r.Charts = append(r.Charts, all)
}

// report returns the crowd's table and line, what one of the most consumers
// added, and how often the driver exported.
func (c *crowd) report() (t report.Table, s report.Series, added float64, exports int) {
	t = report.Table{
		Name: "consumers", Title: "One buffer of 2 MiB to several consumers " + c.kind + " at once", Text: crowdText[c.context] + " " + fmt.Sprintf(exponentText, "consumers") + "\n" + leftOut(c.absent),
		Head: []string{"consumers", "all have it", "each added", "own steps"},
	}
	s.Name, added = c.kind, nan
	one := stats.Summarize(c.fans[0].all).P50
	for _, x := range c.fans {
		all, each := stats.Summarize(x.all).P50, ""
		if x.consumers > 1 {
			added = (all - one) / float64(x.consumers-1)
			each = report.Duration(added)
		}
		exports += x.exports
		t.Rows = append(t.Rows, []string{fmt.Sprint(x.consumers), report.Duration(all), each, report.Duration(stats.Summarize(x.imports).P50)})
		s.X, s.Y = append(s.X, float64(x.consumers)), append(s.Y, all)
	}
	t.Rows = append(t.Rows, []string{"exponent", report.Exponent(stats.Exponent(s.X, s.Y))})
	return t, s, added, exports
}

// starts are those of one rival, in nanoseconds.
type starts struct{ ready, handed, whole []float64 }

// fromStart measures from nothing: the processes are started, and hand over
// their first buffer.
func fromStart(ctx context.Context, o options, r *report.Report) error {
	all, absent, err := startAll(ctx, o)
	if err != nil {
		return err
	}
	t := report.Table{
		Name: "start", Title: "From no process at all to 2 MiB handed over",
		Text: "Ready: both processes have their driver, a context and a connection. First: the first handoff after that, with all that drivers do once.\n" + leftOut(absent),
		Head: []string{"rival", "ready, p50", "first, p50", "together, p50", "times"},
	}
	bars := report.Chart{Name: "start", Title: "From no process to 2 MiB handed over, p50", Y: "time, ns", Series: []report.Series{{Name: "together"}}}
	for _, c := range o.rivals {
		x := all[c.name]
		if x == nil {
			continue
		}
		s := stats.Summarize(x.whole)
		t.Rows = append(t.Rows, []string{c.name, report.Duration(stats.Summarize(x.ready).P50), report.Duration(stats.Summarize(x.handed).P50),
			report.Duration(s.P50), fmt.Sprint(s.N)})
		bars.Labels, bars.Series[0].Y = append(bars.Labels, c.name), append(bars.Series[0].Y, s.P50)
		addRaw(r, "start", c.name, point{granularity, 1, first}, 1, x.whole)
		fmt.Println(strings.Join(t.Rows[len(t.Rows)-1], "  "))
	}
	r.Tables, r.Charts = append(r.Tables, t), append(r.Charts, bars)
	return nil
}

// startAll starts the rivals turn about, and says who cannot be.
func startAll(ctx context.Context, o options) (map[string]*starts, []string, error) {
	all, f := map[string]*starts{}, &field{}
	for i := range o.starts {
		if i > 0 && o.over() {
			break
		}
		for _, c := range o.rivals {
			ready, handed, err := startOnce(ctx, c)
			switch {
			case err == nil:
				if all[c.name] == nil {
					all[c.name] = &starts{}
				}
				x := all[c.name]
				x.ready, x.handed, x.whole = append(x.ready, ready), append(x.handed, handed), append(x.whole, ready+handed)
			case ctx.Err() != nil || c.name == o.rivals[0].name:
				return nil, nil, err
			case !slices.Contains(f.absent, program.OneLine(err)):
				f.leaveOut(err)
			}
		}
	}
	return all, f.absent, nil
}

func startOnce(ctx context.Context, c command) (ready, handed float64, err error) {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := rival.Start(bounded, c.name, c.argv...)
	if err != nil {
		return 0, 0, err
	}
	a, err := ask(ctx, r, "handoff %d 1", granularity)
	return float64(r.Started), float64(a.NS), errors.Join(err, r.Close())
}
