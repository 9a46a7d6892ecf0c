package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/internal/cli"
)

// base is the rival that all are compared with.
const base = "c"

const text = `From the buffer being ready in one process to its knowing that another has it mapped with access set. Every
buffer is new and filled before (in Python only its ends are written), and the other process finds a new number at both of its ends,
or it does not count.

The rivals take turns within each iteration, beginning with another in each. Each is a pair of processes of its own; the one that
takes is woken before the buffer is made. In its turn each makes two handoffs: the first finds processors asleep and caches full of
the others' work, the next does not. A p95 or p99 of too few handoffs is left out.

Ours is package share, read-only: it prepares its offer, then writes the data and waits for the device, while the consumer imports. C
maps read-write, and exports and waits for the device beforehand. CuPy sends legacy IPC handles over a multiprocessing pipe, and PyTorch
a tensor, as torch.multiprocessing does.

`

// turns are the handoffs of a rival's turn, which are measured apart.
var turns = []string{"first", "next"}

// A result is what one rival took for a size.
type result struct {
	rival, turn string
	size        uint64
	ns          []float64
}

// errTimeIsUp is why a size is left out.
var errTimeIsUp = errors.New("the time for all of it was over")

// handoffs measures handoffs of each size and reports them. The first size for which time or device memory is over
// ends that.
func handoffs(ctx context.Context, o options, out, stderr io.Writer) (err error) {
	f, err := rival.StartAll(ctx, o.rivals, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r := &report.Report{Name: "handoff", Machine: report.ThisMachine(),
		Raw: report.Table{Head: []string{"rival", "size", "turn", "n", "min_ns", "p25_ns", "p50_ns", "p75_ns", "p95_ns", "p99_ns", "max_ns"}}}
	for i, size := range o.sizes {
		var results []*result
		err := errTimeIsUp
		if i == 0 || !o.over() {
			results, err = measure(ctx, f, size, o)
		}
		if err != nil {
			if !errors.Is(err, errTimeIsUp) && !strings.Contains(err.Error(), "CUDA_ERROR_OUT_OF_MEMORY") {
				return err
			}
			f.LeaveOut(fmt.Errorf("%s and more: %w", cli.Human(size), err))
			break
		}
		for _, turn := range turns {
			add(r, out, size, turn, results)
		}
	}
	r.Text = text + f.Text()
	return r.Write(o.out, out)
}

// warmups is how many handoffs are made first, unmeasured: drivers do some
// things once.
func warmups(size uint64) int {
	if size > 1<<30 {
		return 1 // each takes long
	}
	return 3
}

// measure asks each rival to hand over, turn about.
func measure(ctx context.Context, f *rival.Field, size uint64, o options) (all []*result, err error) {
	one := func(n int, r *rival.Rival, turn string) error {
		a, err := rival.Ask(ctx, r, fmt.Sprintf("handoff %d", size))
		if err == nil && a.NS <= 0 {
			err = fmt.Errorf("rival %s: its answer has no time", r.Name)
		}
		if err != nil || n < 0 {
			return err
		}
		i := slices.IndexFunc(all, func(x *result) bool { return x.rival == r.Name && x.turn == turn })
		if i < 0 {
			i = len(all)
			all = append(all, &result{rival: r.Name, turn: turn, size: size})
		}
		all[i].ns = append(all[i].ns, float64(a.NS))
		return nil
	}
	begun := time.Now()
	for n := -warmups(size); n < o.iterations && (n < 1 || time.Since(begun) < o.time && !o.over()); n++ {
		err := f.TakeTurns(ctx, n+warmups(size), func(r *rival.Rival) error {
			for _, turn := range turns {
				if err := one(n, r, turn); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// add adds the table and the quantiles of one size and turn, and prints its results at once.
func add(r *report.Report, out io.Writer, size uint64, turn string, results []*result) {
	t := report.Table{Title: fmt.Sprintf("Handoff of %s, %s of a turn", cli.Human(size), turn),
		Head: []string{"rival", "p50", "p95", "p99", "best", "times", "p50 against " + base}}
	against := math.NaN()
	for _, x := range results {
		if x.rival == base && x.turn == turn {
			against = stats.Summarize(x.ns).P50
		}
	}
	for _, x := range results {
		if x.turn != turn {
			continue
		}
		s := stats.Summarize(x.ns)
		row := []string{x.rival, report.Duration(s.P50), tail(s.N, 20, s.P95), tail(s.N, 100, s.P99), report.Duration(s.Min), fmt.Sprint(s.N), report.Times(s.P50 / against)}
		t.Rows = append(t.Rows, row)
		fmt.Fprintln(out, cli.Size(size), turn, strings.Join(row, "  "))
		raw := []string{x.rival, fmt.Sprint(size), turn, fmt.Sprint(s.N)}
		for _, v := range []float64{s.Min, s.P25, s.P50, s.P75, s.P95, s.P99, s.Max} {
			raw = append(raw, fmt.Sprintf("%.0f", v))
		}
		r.Raw.Rows = append(r.Raw.Rows, raw)
	}
	r.Tables = append(r.Tables, t)
}

// tail prints a quantile in the tail of n samples, if they are enough for one of
// them to lie behind it.
func tail(n, enough int, ns float64) string {
	if n < enough {
		ns = math.NaN()
	}
	return report.Duration(ns)
}
