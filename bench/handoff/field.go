package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/bench/internal/stats"
)

// A field is the rivals that run, in the order they were named.
type field struct {
	rivals  []*rival.Rival
	turns   []turn   // what each does when it is its turn
	started []string // what each is that was started
	absent  []string // who could not be started, or failed, and why
}

// start starts the rivals. Those that this machine cannot run are left out and
// reported; the first, ours, has to run.
func start(ctx context.Context, cmds commands, turns ...turn) (*field, error) {
	f := &field{turns: turns}
	for i, c := range cmds {
		one, cancel := context.WithTimeout(ctx, patience)
		r, err := rival.Start(one, c.name, c.argv...)
		cancel()
		switch {
		case err == nil:
			f.rivals = append(f.rivals, r)
			f.started = append(f.started, about(r))
		case i == 0:
			return nil, err
		default:
			f.leaveOut(err)
		}
	}
	return f, nil
}

func (f *field) leaveOut(err error) {
	f.absent = append(f.absent, program.OneLine(err))
	fmt.Fprintln(os.Stderr, "handoff: left out:", f.absent[len(f.absent)-1])
}

func (f *field) close() error {
	var errs []error
	for _, r := range f.rivals {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

// errTimeIsUp is why a point is left out.
var errTimeIsUp = errors.New("the time for all of it was over")

// skip says whether a point is left out for want of time or of device memory, and notes it.
// err is what came of measuring it, if it was.
func (f *field) skip(what string, o options, err error) bool {
	switch {
	case err == nil && o.over():
		err = errTimeIsUp
	case err == nil || !strings.Contains(err.Error(), "CUDA_ERROR_OUT_OF_MEMORY"):
		return false
	}
	f.leaveOut(fmt.Errorf("%s and more: %w", what, err))
	return true
}

// patience bounds one handoff of one rival, or its start.
const patience = 2 * time.Minute

// warmups is how many handoffs are made first, unmeasured: drivers do some
// things once.
func warmups(size uint64) int {
	if size > 1<<30 {
		return 1 // each takes long
	}
	return 3
}

// A point is what is handed over, and whether it is the first handoff of a
// rival's turn, which finds its processes asleep and the caches full of others'
// work, or the next one.
type point struct {
	size uint64
	turn turn
}

type turn string

// The turns. They are measured apart.
const (
	first turn = "first"
	next  turn = "next"
)

// A result is what one rival did at one point.
type result struct {
	rival string
	point
	ns    []float64
	steps []step // in the order in which they were told of
}

// A step is one part of the handoff, in all iterations.
type step struct {
	side, name string
	at, ns     []float64
}

// measure has each rival hand over, turn about, beginning with another in each
// iteration. A rival that fails is left out from then on, but for the first.
func (f *field) measure(ctx context.Context, size uint64, o options) (all []*result, err error) {
	results := map[string][]*result{}
	for _, r := range f.rivals {
		for _, t := range f.turns {
			results[r.Name] = append(results[r.Name], &result{rival: r.Name, point: point{size, t}})
		}
		all = append(all, results[r.Name]...)
	}
	begun := time.Now()
	for n := -warmups(size); n < o.iterations && (n < 1 || time.Since(begun) < o.time && !o.over()); n++ {
		order := slices.Clone(f.rivals)
		for i := range order {
			r := order[(i+n+warmups(size))%len(order)]
			err := f.turn(ctx, r, results[r.Name], n >= 0)
			switch {
			case err == nil:
			case ctx.Err() != nil || r == f.rivals[0]:
				return nil, err
			default:
				f.leaveOut(fmt.Errorf("%s: %w", label(point{size, first}), err))
				f.rivals = slices.DeleteFunc(f.rivals, func(x *rival.Rival) bool { return x == r })
				_ = r.Close() // it is out of use, whatever becomes of it
			}
		}
	}
	return slices.DeleteFunc(all, func(r *result) bool { return len(r.ns) == 0 }), nil
}

// turn has a rival make its handoffs, which count if they are to.
func (f *field) turn(ctx context.Context, r *rival.Rival, results []*result, count bool) error {
	for _, x := range results {
		a, err := ask(ctx, r, "handoff %d 1", x.size)
		if err != nil {
			return err
		}
		if count {
			x.add(a)
		}
	}
	return nil
}

// ask has a rival hand over, within bounds.
func ask(ctx context.Context, r *rival.Rival, format string, args ...any) (rival.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a, err := r.Ask(ctx, format, args...)
	if err == nil && a.NS <= 0 {
		err = fmt.Errorf("rival %s: its answer has no time", r.Name)
	}
	return a, err
}

func (r *result) add(a rival.Answer) {
	r.ns = append(r.ns, float64(a.NS))
	for _, s := range a.Steps {
		known := r.step(s.Side, s.Name)
		known.at = append(known.at, float64(s.At))
		known.ns = append(known.ns, float64(s.NS))
	}
}

// step is the step of that name, which is new the first time.
func (r *result) step(side, name string) *step {
	i := slices.IndexFunc(r.steps, func(s step) bool { return s.side == side && s.name == name })
	if i < 0 {
		r.steps = append(r.steps, step{side: side, name: name})
		i = len(r.steps) - 1
	}
	return &r.steps[i]
}

func (r *result) p50() float64 { return stats.Summarize(r.ns).P50 }

// of finds a rival's result at a point, or nil.
func of(results []*result, name string, p point) *result {
	for _, r := range results {
		if r.rival == name && r.point == p {
			return r
		}
	}
	return nil
}
