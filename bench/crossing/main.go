//go:build cgo

// Command crossing measures what a call from Go into C costs: gpufd's own
// crossing, cgo's, and purego's two.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program; it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("crossing", flag.ContinueOnError)
	rounds := flags.Int("rounds", 25, "how `often` each way is measured")
	d := flags.Duration("time", 20*time.Millisecond, "how `long` each way makes calls, in each round")
	dir := flags.String("out", "", "`directory` to write crossing.csv to; none: print only")
	return program.Run(flags, args, stdout, stderr, func() error {
		if *rounds < 1 || *d <= 0 {
			return cli.Usagef("-rounds %d -time %s: want at least one round, and some time", *rounds, *d)
		}
		ways := makeWays()
		return makeReport(ways, measure(ways, *rounds, *d)).Write(*dir, stdout)
	})
}

// A sample is n calls of one way, made one after the other.
type sample struct {
	n       int
	took    time.Duration
	mallocs uint64 // of the whole process meanwhile
}

// perCall is nanoseconds for each call.
func (s sample) perCall() float64 { return float64(s.took.Nanoseconds()) / float64(s.n) }

// allocs is allocations for each call, as testing.AllocsPerRun counts them: what
// is less than one for each call is the runtime's, or a pool that fills again.
func (s sample) allocs() uint64 { return s.mallocs / uint64(s.n) }

// measure makes calls in every way for about d in each round, and returns the samples of each way, round by round.
// Each round begins with another way.
func measure(ways []way, rounds int, d time.Duration) [][]sample {
	counts := make([]int, len(ways))
	for i, w := range ways {
		counts[i] = calibrate(w.run, d)
	}
	samples := make([][]sample, len(ways))
	for round := range rounds {
		for i := range ways {
			i = (i + round) % len(ways)
			samples[i] = append(samples[i], once(ways[i].run, counts[i]))
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
	return sample{n, took, after.Mallocs - before.Mallocs}
}

const text = `What it costs to call a C function of 4 arguments, those of cuStreamWriteValue64, that does next to nothing, in each of the ways that a
Go program has. All ways call the same function in one process, one way after the other, and each round begins with another way. The
ratio is the median of the ratios within each round. Allocations are whole ones per call, the most of any round.

- **ours** is package cu/sys.
- **purego.SyscallN** and **purego.RegisterFunc** are the dependency's own ways, untyped and typed.
`

func makeReport(ways []way, samples [][]sample) *report.Report {
	r := &report.Report{Name: "crossing", Text: text, Machine: report.ThisMachine(),
		Raw: report.Table{Head: []string{"way", "round", "calls", "ns_per_call", "mallocs", "allocs_per_call"}}}
	times, most := make([][]float64, len(ways)), make([]uint64, len(ways))
	for i, w := range ways {
		for round, s := range samples[i] {
			times[i], most[i] = append(times[i], s.perCall()), max(most[i], s.allocs())
			r.Raw.Rows = append(r.Raw.Rows, []string{w.name, fmt.Sprint(round), fmt.Sprint(s.n), fmt.Sprintf("%.3f", s.perCall()), fmt.Sprint(s.mallocs), fmt.Sprint(s.allocs())})
		}
	}
	t := report.Table{Title: "One call", Head: []string{"way", "median", "best", "P25–P75", "worst", "allocations", "ours to it"}}
	for i, w := range ways {
		s := stats.Summarize(times[i])
		t.Rows = append(t.Rows, []string{w.name, report.Duration(s.P50), report.Duration(s.Min), report.Duration(s.P25) + " – " + report.Duration(s.P75),
			report.Duration(s.Max), fmt.Sprint(most[i]), report.Times(stats.Ratio(times[0], times[i]))})
	}
	r.Tables = []report.Table{t}
	return r
}
