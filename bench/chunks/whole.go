package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// What a consumer does with chunks that came as descriptors: steps, and two that are several.
const (
	attach  = "attach" // import, reserve, map and access
	access  = "access"
	unmap   = "unmap" // and free the address space
	release = "release"
	closing = "close" // unmap and release
)

var wholeSteps = []string{"import", "reserve", "map", access, attach, unmap, release, closing}

// The ways of doing that.
const (
	ours = "vmm"
	byC  = "C"
)

// A whole is exported chunks without an owner: descriptors alone keep them.
type whole struct {
	memory vmm.Descriptor
	files  []*os.File
	ours   *rival.Rival
	c      *rival.Rival // or nil
	absent string       // why

	ns map[string]map[string][]float64 // of a way, and of a step of "N chunks", per chunk
}

// newWhole makes the most chunks that are asked for, and starts ours and C with them: neither is the
// process that made them, where the driver takes longer.
func newWhole(ctx context.Context, dev *cu.Device, most int, command []string) (w *whole, err error) {
	w = &whole{ns: map[string]map[string][]float64{ours: {}, byC: {}}, absent: "no command was given"}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	g, err := vmm.Granularity(dev)
	if err != nil {
		return w, err
	}
	b, err := vmm.New(dev, uint64(most)*g, vmm.WithChunkSize(g))
	if err != nil {
		return w, err
	}
	w.memory, w.files, err = b.Export()
	if err = errors.Join(err, b.Close()); err != nil {
		return w, err
	}
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return w, err
	}
	if w.ours, err = rival.StartWith(limit, ours, w.files, self, "-importer", "-driver", dev.Driver().Kind().String()); err != nil || len(command) == 0 {
		return w, err
	}
	if w.c, err = rival.StartWith(limit, byC, w.files, command...); err != nil {
		w.absent = err.Error()
	}
	return w, nil
}

func (w *whole) close() error {
	var err error
	for _, r := range []*rival.Rival{w.ours, w.c} {
		if r != nil {
			err = errors.Join(err, r.Close())
		}
	}
	return errors.Join(err, sock.CloseFiles(w.files))
}

// measure has both ways attach to the first n chunks and let go of them, turn about. The first
// round warms up.
func (w *whole) measure(ctx context.Context, n, rounds int) error {
	for round := range rounds + 1 {
		for i := range 2 {
			var err error
			if r := [...]*rival.Rival{w.ours, w.c}[(i+round)%2]; r != nil {
				err = w.ask(ctx, r, n, round > 0)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *whole) ask(ctx context.Context, r *rival.Rival, n int, count bool) error {
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	a, err := r.Ask(limit, "chunks %d %d", n, w.memory.ChunkSize)
	if err != nil {
		return err
	}
	took := map[string]time.Duration{attach: time.Duration(a.NS)}
	for _, s := range a.Steps {
		took[s.Name] = time.Duration(s.NS)
	}
	took[closing] = took[unmap] + took[release]
	if count {
		w.add(r.Name, n, took)
	}
	return nil
}

func key(n int, step string) string { return fmt.Sprintf("%d %s", n, step) }

func (w *whole) add(way string, n int, took map[string]time.Duration) {
	for step, d := range took {
		w.ns[way][key(n, step)] = append(w.ns[way][key(n, step)], float64(d.Nanoseconds())/float64(n))
	}
}

// p50 is per chunk.
func (w *whole) p50(way string, n int, step string) float64 {
	ns := w.ns[way][key(n, step)]
	if len(ns) == 0 {
		return math.NaN()
	}
	return stats.Summarize(ns).P50
}

// exponent is how the time for all chunks grows with their number.
func (w *whole) exponent(way string, chunks []int, step string) float64 {
	var xs, ys []float64
	for _, n := range chunks {
		if p50 := w.p50(way, n, step); !math.IsNaN(p50) {
			xs, ys = append(xs, float64(n)), append(ys, p50*float64(n))
		}
	}
	return stats.Exponent(xs, ys)
}

const wholeText = `What a consumer, a process of its own, does with chunks whose descriptors it has, per chunk, and the ratio to the bare calls in C, which make one call for all
chunks where the driver has that: to set access and to unmap. So does package vmm. Attach is the first four steps; unmap
frees the address space, too; close is unmap and release. The exponent is the slope of log time over log chunks, of all chunks, by
least squares over the larger half of the points: 1 is linear.`

// report adds a table, bars and the samples.
func (w *whole) report(r *report.Report, chunks []int) {
	t := report.Table{Name: "whole", Title: "Attaching to chunks and letting go of them, per chunk", Text: wholeText, Head: []string{"chunks", "step", ours, byC, "ratio"}}
	if w.c == nil {
		t.Text += "\n\nC was not measured: " + w.absent + "."
	}
	for _, n := range chunks {
		for _, step := range wholeSteps {
			us, c := w.p50(ours, n, step), w.p50(byC, n, step)
			t.Rows = append(t.Rows, []string{fmt.Sprint(n), step, report.Duration(us), report.Duration(c), report.Ratio(us / c)})
			for _, way := range []string{ours, byC} {
				for i, ns := range w.ns[way][key(n, step)] {
					r.Raw.Rows = append(r.Raw.Rows, []string{fmt.Sprint(n), step, way, fmt.Sprint(i), fmt.Sprintf("%.1f", ns)})
				}
			}
			if slices.Contains([]string{attach, access, unmap, closing}, step) {
				r.Bars = append(r.Bars, report.Bar{Claim: fmt.Sprintf("p50 of %s, chunks: %d, of C's", step, n), Limit: 1.1, Got: us / c})
			}
		}
	}
	for _, step := range wholeSteps {
		us, c := w.exponent(ours, chunks, step), w.exponent(byC, chunks, step)
		t.Rows = append(t.Rows, []string{"exponent", step, report.Exponent(us), report.Exponent(c), ""})
		if step == attach || step == closing {
			r.Bars = append(r.Bars, report.Bar{Claim: fmt.Sprintf("exponent of %s over chunks, against C's if it is above 1", step), Limit: stats.LinearLimit(c), Got: us})
		}
	}
	r.Tables = append([]report.Table{t}, r.Tables...)
}
