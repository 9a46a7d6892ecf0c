package main

import (
	"fmt"
	"math"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/internal/cli"
)

const about = "A writer and its readers are processes of their own, on %s. One way is half of there and back by streams that were queued beforehand: the last reader to join answers, by a channel of its own, and a host reads the clock when a word of the writer's stream changes. Hosts spin. A frame's time is that of one among many that flow: the writer's stream fills it, and the reader's has a kernel read every word, or copies it to pinned memory of the host. Rivals take turns in every round, in rotating order. Ratios are to the second rival.\n\n"

func (f *field) report() *report.Report {
	r := &report.Report{
		Name: "channel", Machine: report.ThisMachine(), Text: fmt.Sprintf(about, "one GPU") + f.Text(),
		Raw: report.Table{Head: []string{"question", "rival", "round", "what", "ns"}},
	}
	r.Tables = []report.Table{f.wayTable("oneway"), f.wayTable("hosts"), f.framesTable(false), f.framesTable(true)}
	if f.two {
		r.Name, r.Text = "channel-two", fmt.Sprintf(about, "two GPUs: the frames are on the writer's")+f.Text()
		r.Tables = []report.Table{f.wayTable("oneway"), f.framesTable(false)}
	}
	for i, q := range f.asked {
		for _, name := range f.names(q) {
			f.raw(r, q, name, f.got[i][name])
		}
	}
	return r
}

// raw adds what was answered, round by round.
func (f *field) raw(r *report.Report, q question, name string, all []rival.Answer) {
	for round, a := range all {
		add := func(what string, ns float64) {
			r.Raw.Rows = append(r.Raw.Rows, []string{q.String(), name, fmt.Sprint(round), what, fmt.Sprintf("%.0f", ns)})
		}
		if q.kind == "frames" {
			add("frame", perFrame(a))
			continue
		}
		s := stats.Summarize(floats(a.Each))
		add("p50", s.P50)
		add("p99", s.P99)
		add("max", s.Max)
	}
}

// wayTable lists the median and the 99th percentile of each rival.
func (f *field) wayTable(kind string) report.Table {
	t := report.Table{Title: "Stream to stream, one way", Head: []string{"readers", "rival", "p50", "p99", "ratio of p50"}}
	if kind == "hosts" {
		t.Title, t.Head[0] = "CPU to CPU, there and back", "rounds"
	}
	for q, got := range f.of(kind) {
		first := fmt.Sprint(q.readers)
		if kind == "hosts" {
			first = fmt.Sprint(q.count)
		}
		for _, name := range f.names(q) {
			t.Rows = append(t.Rows, []string{first, name, median(got[name], half), median(got[name], tail), report.Times(f.ratio(got, name, half))})
		}
	}
	return t
}

func (f *field) framesTable(copies bool) report.Table {
	t := report.Table{Title: "Time per frame, kernels on both sides", Head: []string{"size", "slots", "rival", "time", "rate", "ratio"}}
	if copies {
		t.Title = "Time per frame, copied to the host"
	}
	for q, got := range f.of("frames") {
		if q.copies != copies {
			continue
		}
		for _, name := range f.names(q) {
			rate := "–"
			if all := got[name]; len(all) > 0 {
				rate = fmt.Sprintf("%.1f GB/s", float64(q.size)/stats.Summarize(samples(all, perFrame)).P50)
			}
			t.Rows = append(t.Rows, []string{cli.Human(q.size), fmt.Sprint(q.slots), name, median(got[name], perFrame), rate, report.Times(f.ratio(got, name, perFrame))})
		}
	}
	return t
}

// median is that of the rounds.
func median(all []rival.Answer, of func(rival.Answer) float64) string {
	if len(all) == 0 {
		return "not measured"
	}
	return report.Duration(stats.Summarize(samples(all, of)).P50)
}

// ratio is the median of what the rival's rounds are to those of the one that ours is compared
// with; not a number where one of them has not answered all.
func (f *field) ratio(got answers, name string, of func(rival.Answer) float64) float64 {
	if len(f.rivals) < 2 {
		return math.NaN()
	}
	return stats.Ratio(samples(got[name], of), samples(got[f.rivals[1].Name], of))
}
