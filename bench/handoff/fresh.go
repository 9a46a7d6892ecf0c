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

// orders are the times at which a consumer makes its context: before it asks for memory, while it
// imports and maps, and after that. Rivals are asked for the index.
var orders = []struct {
	name  string
	claim string // of the bars, or none
}{{"context first", ""}, {"at the same time", "steps at the same time"}, {"mapping first", "mapping first"}}

// A beginning is how a consumer begins.
type beginning struct {
	rival          string
	order          int // of orders
	mapped, usable []float64
	begun, driver  []float64 // until the program's own code ran; opening the driver and its device
	offer          []float64 // connecting, asking, and having the answer: ours
}

const freshText = `From before the exec of a consumer's process to its producer knowing that the memory is mapped there, and to the consumer
having a context as well, in which it can use the memory. The producer's is there before, written and exported. A consumer makes its
primary context before it asks for the memory; while it imports and maps, from when it has its driver; or when the memory is mapped.
C receives the offer during cuInit, too, except where its context comes first. Ours does not: what it asks for depends on the driver and
on what its device can do. What that leaves to be won is the column "offer": to connect, to ask, and to have the answer. The column
"begun" is until the program has read its flags, and "driver" what it then takes to load libcuda, where it is not loaded with the
program, to initialise it and to find the device.
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

// begin has each rival start consumers in each order, turn about.
func (f *field) begin(ctx context.Context, o options) (all []*beginning, err error) {
	for _, r := range f.rivals {
		for order := range orders {
			all = append(all, &beginning{rival: r.Name, order: order})
		}
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
	return ask(ctx, r, "fresh %d %d", granularity, b.order)
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
		Head: []string{"rival", "order", "mapped, p50", "usable, p50", "usable, best", "begun, p50", "driver, p50", "offer, p50", "times"},
	}
	p50 := func(ns []float64) float64 {
		if len(ns) == 0 {
			return nan
		}
		return stats.Summarize(ns).P50
	}
	of := map[string]*beginning{}
	for _, b := range all {
		how := orders[b.order].name
		of[b.rival+how] = b
		if len(b.mapped) == 0 {
			continue
		}
		t.Rows = append(t.Rows, []string{b.rival, how, report.Duration(p50(b.mapped)), report.Duration(p50(b.usable)),
			report.Duration(stats.Summarize(b.usable).Min),
			report.Duration(p50(b.begun)), report.Duration(p50(b.driver)), report.Duration(p50(b.offer)), fmt.Sprint(len(b.mapped))})
		fmt.Println(t.Rows[len(t.Rows)-1])
		addRaw(r, "fresh, mapped, "+how, b.rival, point{granularity, 1, first}, 1, b.mapped)
		addRaw(r, "fresh, usable, "+how, b.rival, point{granularity, 1, first}, 1, b.usable)
	}
	r.Tables = append(r.Tables, t)
	for _, order := range orders {
		if order.claim == "" {
			continue
		}
		mapped, usable := nan, nan
		if us, c := of[ours+order.name], of[cBefore+order.name]; us != nil && c != nil {
			mapped, usable = p50(us.mapped)/p50(c.mapped), p50(us.usable)/p50(c.usable)
		}
		r.Bars = append(r.Bars,
			report.Bar{Claim: "p50 from exec to mapped memory, " + order.claim + ", of C's", Limit: 1.05, Got: mapped},
			report.Bar{Claim: "p50 from exec to memory that can be used, " + order.claim + ", of C's", Limit: 1.05, Got: usable})
	}
}
