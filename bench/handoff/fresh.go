package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/bench/internal/stats"
)

// freshTimes is how often each way of each rival is measured.
const freshTimes = 25

// A beginning is how a consumer begins: one step after the other, or steps at the same time.
type beginning struct {
	rival          string
	together       bool
	mapped, usable []float64
	begun, driver  []float64 // until the program's own code ran; opening the driver and its device
	offer          []float64 // connecting, asking, and having the answer: ours
}

func (b *beginning) how() string {
	if b.together {
		return "at the same time"
	}
	return "one after the other"
}

const freshText = `From before the exec of a consumer's process to its producer knowing that the memory is mapped there, and to the consumer
having a context as well, in which it can use the memory. The producer's is there before, written and exported. One after the other is
cuInit, the primary context, the offer, import and mapping. At the same time: both make the primary context while they import and map,
C from the end of cuInit on, and ours from when the offer is there. C receives the offer during cuInit, too. Ours does not: what it
asks for depends on the driver and on what its device can do. What that leaves to be won is the column "offer": to connect, to ask, and to have the answer. The column "begun" is until the program has
read its flags, and "driver" what it then takes to load libcuda, where it is not loaded with the program, to initialise it and to find the device.
`

// freshConsumers measures consumers whose process has just been started.
func freshConsumers(ctx context.Context, o options, r *report.Report) (err error) {
	var cmds commands
	for _, c := range o.rivals {
		if c.name == ours || c.name == cBefore {
			cmds = append(cmds, c)
		}
	}
	f, err := start(ctx, cmds, first)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	all, err := f.begin(ctx, o)
	if err != nil {
		return err
	}
	reportFresh(r, all, f.absent)
	return nil
}

// begin has each rival start consumers in both ways, turn about.
func (f *field) begin(ctx context.Context, o options) (all []*beginning, err error) {
	for _, r := range f.rivals {
		all = append(all, &beginning{rival: r.Name}, &beginning{rival: r.Name, together: true})
	}
	for n := -1; n < min(freshTimes, o.iterations) && (n < 1 || !o.over()); n++ {
		for i := range all {
			b := all[(i+n+1)%len(all)]
			at := slices.IndexFunc(f.rivals, func(r *rival.Rival) bool { return r.Name == b.rival })
			if at < 0 {
				continue // it was left out
			}
			a, err := b.ask(ctx, f.rivals[at])
			switch {
			case err == nil && n >= 0:
				b.add(a)
			case err == nil:
			case ctx.Err() != nil || b.rival == ours:
				return nil, err
			default:
				f.leaveOut(err)
				_ = f.rivals[at].Close() // it is out of use, whatever becomes of it
				f.rivals = slices.Delete(f.rivals, at, at+1)
			}
		}
	}
	return all, nil
}

func (b *beginning) ask(ctx context.Context, r *rival.Rival) (rival.Answer, error) {
	together := 0
	if b.together {
		together = 1
	}
	return ask(ctx, r, "fresh %d %d", granularity, together)
}

// add notes when the memory was mapped, and when there was a context as well.
func (b *beginning) add(a rival.Answer) {
	usable := a.NS
	for _, s := range a.Steps {
		switch {
		case s.Name == "context":
			usable = max(usable, s.At+s.NS)
		case s.Name == "driver" && s.Side == "consumer":
			b.begun, b.driver = append(b.begun, float64(s.At)), append(b.driver, float64(s.NS))
		case s.Name == "offer" && s.Side == "consumer":
			b.offer = append(b.offer, float64(s.NS))
		}
	}
	b.mapped, b.usable = append(b.mapped, float64(a.NS)), append(b.usable, float64(usable))
}

func reportFresh(r *report.Report, all []*beginning, absent []string) {
	t := report.Table{
		Name: "fresh", Title: "From the exec of a consumer to 2 MiB mapped", Text: freshText + leftOut(absent),
		Head: []string{"rival", "steps", "mapped, p50", "usable, p50", "usable, best", "begun, p50", "driver, p50", "offer, p50", "times"},
	}
	p50 := func(ns []float64) float64 {
		if len(ns) == 0 {
			return nan
		}
		return stats.Summarize(ns).P50
	}
	together := map[string]*beginning{}
	for _, b := range all {
		if b.together {
			together[b.rival] = b
		}
		if len(b.mapped) == 0 {
			continue
		}
		t.Rows = append(t.Rows, []string{b.rival, b.how(), report.Duration(p50(b.mapped)), report.Duration(p50(b.usable)),
			report.Duration(stats.Summarize(b.usable).Min),
			report.Duration(p50(b.begun)), report.Duration(p50(b.driver)), report.Duration(p50(b.offer)), fmt.Sprint(len(b.mapped))})
		fmt.Println(t.Rows[len(t.Rows)-1])
		addRaw(r, "fresh, mapped, "+b.how(), b.rival, point{granularity, 1, first}, 1, b.mapped)
		addRaw(r, "fresh, usable, "+b.how(), b.rival, point{granularity, 1, first}, 1, b.usable)
	}
	mapped, usable := nan, nan
	if us, c := together[ours], together[cBefore]; us != nil && c != nil {
		mapped, usable = p50(us.mapped)/p50(c.mapped), p50(us.usable)/p50(c.usable)
	}
	r.Tables = append(r.Tables, t)
	r.Bars = append(r.Bars,
		report.Bar{Claim: "p50 from exec to mapped memory, steps at the same time, of C's", Limit: 1.05, Got: mapped},
		report.Bar{Claim: "p50 from exec to memory that can be used, steps at the same time, of C's", Limit: 1.05, Got: usable})
}
