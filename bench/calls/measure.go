//go:build cgo

package main

import (
	"math"
	"time"

	"github.com/gpufd/gpufd/bench/internal/stats"
)

// A plan says how much is measured.
type plan struct {
	rounds int
	time   time.Duration // for one way of one call in one round
	drain  func() error  // waits for what calls have queued
}

// results are the nanoseconds of each call, way and round.
type results map[string]map[string][]float64

// measure makes all calls in all ways, round after round. A first round counts
// for nothing: it resolves, maps and wakes what the first call has to.
func (p plan) measure(calls []call) (results, error) {
	all := results{}
	if err := p.round(calls, 0, 0, func(call, way, float64) {}); err != nil {
		return nil, err
	}
	for i := range p.rounds {
		err := p.round(calls, i, p.time, func(c call, w way, ns float64) { all.add(c.name, w.name, ns) })
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// round measures every way of every call once, beginning with another way in
// each round.
func (p plan) round(calls []call, round int, atLeast time.Duration, note func(call, way, float64)) error {
	for _, c := range calls {
		for i := range c.ways {
			w := c.ways[(i+round)%len(c.ways)]
			ns, err := p.batches(c, w, atLeast)
			if err != nil {
				return c.failed(w, err)
			}
			note(c, w, ns)
		}
	}
	return nil
}

// batches is the nanoseconds of one call in batches that together last that long.
// Before each the stream is idle.
func (p plan) batches(c call, w way, atLeast time.Duration) (float64, error) {
	var spent time.Duration
	n := 0
	for n == 0 || spent < atLeast {
		if err := p.drain(); err != nil {
			return 0, err
		}
		d, err := w.run(c.batch)
		if err != nil {
			return 0, err
		}
		spent, n = spent+d, n+c.batch
	}
	return float64(spent.Nanoseconds()) / float64(n), p.drain()
}

func (r results) add(call, way string, ns float64) {
	if r[call] == nil {
		r[call] = map[string][]float64{}
	}
	r[call][way] = append(r[call][way], ns)
}

// summary is that of a way's times, and whether there are any.
func (r results) summary(call, way string) (stats.Summary, bool) {
	ns := r[call][way]
	return stats.Summarize(ns), len(ns) > 0
}

// ratio is the median of the ratios to C of the same round, NaN if there are
// none.
func (r results) ratio(call, way string) float64 {
	ours, c := r[call][way], r[call][byC]
	if len(ours) == 0 {
		return math.NaN()
	}
	return stats.Summarize(stats.Ratios(ours, c)).P50
}

// more is the median of what a call takes longer than C's in the same round, in
// nanoseconds.
func (r results) more(call, way string) float64 {
	more := make([]float64, 0, len(r[call][way]))
	for i, ns := range r[call][way] {
		more = append(more, ns-r[call][byC][i])
	}
	return stats.Summarize(more).P50
}
