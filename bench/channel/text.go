package main

import (
	"fmt"
	"math"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/internal/cli"
)

const about = "A writer and its readers are processes of their own, on %s. One way is half of there and back by streams that were queued beforehand: the last reader to join answers, by a channel of its own, and a host reads the clock when a word of the writer's stream changes. Hosts spin. A frame's time is that of one among many that flow: the writer's stream fills it, and the reader's has a kernel read every word, or copies it to pinned memory of the host. Rivals take turns in every round, in rotating order. Ratios are to %s."

func (f *field) report() *report.Report {
	rival := ""
	if len(f.rivals) > 1 {
		rival = f.rivals[1].name
	}
	r := &report.Report{
		Name: "channel", Machine: report.ThisMachine(), Text: fmt.Sprintf(about, "one GPU", rival),
		Raw: report.Table{Head: []string{"question", "rival", "round", "what", "ns"}},
	}
	r.Tables = []report.Table{f.rivalsTable(), f.wayTable("oneway"), f.wayTable("hosts"), f.framesTable(false), f.framesTable(true), f.queueTable()}
	if f.two {
		r.Name, r.Text = "channel-two", fmt.Sprintf(about, "two GPUs: the frames are on the writer's", rival)
		r.Tables = []report.Table{f.rivalsTable(), f.wayTable("oneway"), f.framesTable(false), f.queueTable()}
	}
	for i, q := range f.asked {
		for _, c := range f.rivals {
			f.raw(r, q, c.name, f.got[i][c.name])
		}
	}
	r.Ratios = f.ratios()
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
		if q.kind == "oneway" {
			add("queue", queueing(a))
		}
	}
}

func (f *field) rivalsTable() report.Table {
	t := report.Table{Title: "Who", Head: []string{"rival", "what"}}
	for i, c := range f.rivals {
		t.Rows = append(t.Rows, []string{c.name, f.infos[i]})
	}
	return t
}

// wayTable has the median and the 99th of a hundred for each rival.
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
		for _, c := range f.rivals {
			if c.frames {
				continue
			}
			t.Rows = append(t.Rows, []string{first, c.name, median(got[c.name], half), median(got[c.name], tail), report.Times(f.ratio(got, c.name, half))})
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
		for _, c := range f.rivals {
			if c.frames && q.slots != 8 {
				continue
			}
			rate := "–"
			if all := got[c.name]; len(all) > 0 {
				rate = fmt.Sprintf("%.1f GB/s", float64(q.size)/stats.Summarize(samples(all, perFrame)).P50)
			}
			t.Rows = append(t.Rows, []string{cli.Human(q.size), fmt.Sprint(q.slots), c.name, median(got[c.name], perFrame), rate, report.Times(f.ratio(got, c.name, perFrame))})
		}
	}
	return t
}

// queueTable is what batches gain: the host's time for what publishes a frame.
func (f *field) queueTable() report.Table {
	t := report.Table{Title: "The host's time to queue a frame for all readers", Head: []string{"readers", "rival", "time"}}
	for q, got := range f.of("oneway") {
		for _, c := range f.rivals {
			if !c.frames {
				t.Rows = append(t.Rows, []string{fmt.Sprint(q.readers), c.name, median(got[c.name], queueing)})
			}
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
	xs, ys := samples(got[name], of), samples(got[f.rivals[1].name], of)
	if len(xs) == 0 || len(xs) != len(ys) {
		return math.NaN()
	}
	return stats.Summarize(stats.Ratios(xs, ys)).P50
}

// ratios are those of ours.
func (f *field) ratios() (rs []report.Ratio) {
	ours := f.rivals[0].name
	for q, got := range f.of("oneway") {
		rs = append(rs, report.Ratio{What: fmt.Sprintf("stream to stream one way, %d readers, p50 of C's", q.readers), Got: f.ratio(got, ours, half)})
	}
	for _, got := range f.of("hosts") {
		us := math.NaN()
		if all := got[ours]; len(all) > 0 {
			us = stats.Summarize(samples(all, half)).P50 / 1000
		}
		rs = append(rs, report.Ratio{What: "CPU to CPU there and back, p50 in µs", Got: us})
	}
	for q, got := range f.of("frames") {
		if q.slots != 4 && q.slots != 8 {
			continue
		}
		what := "kernels on both sides"
		switch {
		case q.copies:
			what = "copied to the host"
		case f.two:
			what = "two GPUs"
		}
		rs = append(rs, report.Ratio{What: fmt.Sprintf("time per frame, %s, %d slots, %s, of C's", cli.Human(q.size), q.slots, what), Got: f.ratio(got, ours, perFrame)})
	}
	return rs
}
