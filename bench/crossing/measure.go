package main

import (
	"runtime"
	"time"
)

// A sample is n calls of one way and form, made one after the other.
type sample struct {
	form    form
	way     int // which of the ways
	round   int
	n       int
	took    time.Duration
	mallocs uint64 // of the whole process meanwhile
}

// perCall is nanoseconds for each call.
func (s sample) perCall() float64 { return float64(s.took.Nanoseconds()) / float64(s.n) }

// allocs is allocations for each call, as testing.AllocsPerRun counts them: what
// is less than one for each call is the runtime's, or a pool that fills again.
func (s sample) allocs() uint64 { return s.mallocs / uint64(s.n) }

// measure has every way make every form of call for about d in each round.
// Ways that are compared with each other follow one another closely, and each
// round begins with another of them.
func measure(ways []way, rounds int, d time.Duration) []sample {
	counts := make([][numForms]int, len(ways))
	for i, w := range ways {
		for f, run := range w.run {
			counts[i][f] = calibrate(run, d)
		}
	}
	var samples []sample
	for round := range rounds {
		for f := range numForms {
			for i := range ways {
				i = (i + round) % len(ways)
				s := once(ways[i].run[f], counts[i][f])
				s.form, s.way, s.round = f, i, round
				samples = append(samples, s)
			}
		}
	}
	return samples
}

// calibrate returns how many calls take about d.
func calibrate(run func(int) uint64, d time.Duration) int {
	for n := 16; ; n *= 4 {
		if s := once(run, n); s.took > d/8 {
			return max(1, int(float64(d)/s.perCall()))
		}
	}
}

// once makes n calls. The garbage of what ran before is gone by then, and what
// the collector took from pools is there again.
func once(run func(int) uint64, n int) sample {
	var before, after runtime.MemStats
	runtime.GC()
	run(16)
	runtime.ReadMemStats(&before)
	start := time.Now()
	run(n)
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	return sample{n: n, took: took, mallocs: after.Mallocs - before.Mallocs}
}
