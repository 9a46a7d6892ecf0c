package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// small is the size of what is kept where numbers grow.
const small = 2 << 20

// Measurements while there are so many names, or readers of one name.
const (
	putting   = "put"             // a version more of a name
	listing   = "list"            // all names
	attaching = "attach"          // to one name, and to let go of it
	restarts  = "restart"         // from a keeper's exec to its serving
	together  = "all attach"      // at once
	beside    = "put beside them" // a version that all of them are told of
)

// A growing is what was measured of one kind of number: for each number and subject the
// samples, in ns.
type growing struct {
	what     string // "names" or "readers"
	subjects []string
	points   []int
	ns       map[string][]float64 // of "N subject"
	absent   string               // why larger numbers were left out, or ""
}

func newGrowing(what string, subjects ...string) *growing {
	return &growing{what: what, subjects: subjects, ns: map[string][]float64{}}
}

// time measures f.
func (g *growing) time(n int, subject string, f func() error) error {
	begin := time.Now()
	err := f()
	if err == nil {
		g.add(n, subject, time.Since(begin))
	}
	return err
}

func (g *growing) add(n int, subject string, took time.Duration) {
	key := fmt.Sprint(n, " ", subject)
	g.ns[key] = append(g.ns[key], float64(took.Nanoseconds()))
}

func (g *growing) p50(n int, subject string) float64 {
	return stats.Summarize(g.ns[fmt.Sprint(n, " ", subject)]).P50
}

// report adds a table and samples.
func (g *growing) report(r *report.Report, title, text string) {
	t := report.Table{Title: title, Text: text, Head: append([]string{g.what}, g.subjects...)}
	if g.absent != "" {
		t.Text += "\n\n" + g.absent
	}
	for _, n := range g.points {
		row := []string{fmt.Sprint(n)}
		for _, subject := range g.subjects {
			row = append(row, report.Duration(g.p50(n, subject)))
			for i, ns := range g.ns[fmt.Sprint(n, " ", subject)] {
				r.Raw.Rows = append(r.Raw.Rows, []string{g.what, fmt.Sprint(n), subject, fmt.Sprint(i), fmt.Sprintf("%.0f", ns)})
			}
		}
		t.Rows = append(t.Rows, row)
	}
	r.Tables = append(r.Tables, t)
}

// A crowd is how far numbers grow.
type crowd struct {
	names, readers int
	budget         time.Duration
	until          time.Time // when no larger number is begun; zero is never
}

// points are the numbers from 1 to most.
func points(most int) (all []int) {
	for n := 1; n < most; n *= 4 {
		all = append(all, n)
	}
	return append(all, most)
}

// next reports whether a larger number is begun, and notes if not.
func (c crowd) next(g *growing, n int) bool {
	if len(g.points) > 0 && !c.until.IsZero() && time.Now().After(c.until) {
		g.absent = fmt.Sprintf("%d %s and more were left out: the time for all of it was over.", n, g.what)
		return false
	}
	g.points = append(g.points, n)
	return true
}

// measureGrowth measures a keeper with more and more names, and with readers of one.
func measureGrowth(ctx context.Context, dev *cu.Device, s settings, c crowd) (names, readers *growing, err error) {
	on, err := dev.PrimaryContext() // users of the memory hold it
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = on.Close() }()
	err = withKeeper(s, func(k *keeperProcess) (err error) {
		g := &grower{dev: dev, keeper: k}
		if c.budget > 0 {
			c.until = time.Now().Add(c.budget / 3)
		}
		if readers, err = g.readers(ctx, c, s.rounds); err != nil {
			return fmt.Errorf("readers: %w", err)
		}
		if c.budget > 0 {
			c.until = time.Now().Add(c.budget / 2)
		}
		if names, err = g.names(ctx, c, s.rounds); err != nil {
			err = fmt.Errorf("names: %w", err)
		}
		return err
	})
	return names, readers, err
}

// A grower makes numbers grow.
type grower struct {
	dev    *cu.Device
	keeper *keeperProcess
}

func (g *grower) put(ctx context.Context, name string) error {
	c, err := keeper.Dial(ctx, g.keeper.socket)
	if err != nil {
		return err
	}
	write := func(context.Context, *vmm.Buffer) error { return nil }
	_, err = c.Put(ctx, keeper.Put{Name: name}, keeper.Part{Device: g.dev, Size: small, Write: write})
	return errors.Join(err, c.Close())
}

func (g *grower) attach(ctx context.Context) (*share.Attachment, error) {
	return share.Attach(ctx, g.keeper.socket, name, g.dev, nil)
}

// names measures with so many names.
func (g *grower) names(ctx context.Context, c crowd, rounds int) (*growing, error) {
	kept := 1 // with the readers' one
	all := newGrowing("names", putting, listing, attaching, restarts)
	for _, n := range points(c.names) {
		if !c.next(all, n) {
			break
		}
		for ; kept < n; kept++ {
			if err := g.put(ctx, fmt.Sprintf("%s-%d", name, kept)); err != nil {
				return nil, err
			}
		}
		for range rounds * 2 {
			err := errors.Join(
				all.time(n, putting, func() error { return g.put(ctx, name) }),
				all.time(n, listing, func() error { _, err := share.List(ctx, g.keeper.socket, nil); return err }),
				all.time(n, attaching, func() error {
					a, err := g.attach(ctx)
					return errors.Join(err, a.Close())
				}))
			if err != nil {
				return nil, err
			}
		}
		for range rounds {
			took, err := g.keeper.restart()
			if err != nil {
				return nil, err
			}
			all.add(n, restarts, took)
		}
	}
	return all, nil
}

// readers measures with so many readers of one name, all in this process.
func (g *grower) readers(ctx context.Context, c crowd, rounds int) (*growing, error) {
	all := newGrowing("readers", together, beside)
	if err := g.put(ctx, name); err != nil {
		return nil, err
	}
	for _, n := range points(c.readers) {
		if !c.next(all, n) {
			break
		}
		for range rounds {
			if err := g.read(ctx, all, n); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// read attaches n readers at once, and then puts another version, until all were told.
func (g *grower) read(ctx context.Context, all *growing, n int) (err error) {
	held := make([]*share.Attachment, n)
	defer func() {
		for _, a := range held {
			err = errors.Join(err, a.Close())
		}
	}()
	err = all.time(n, together, func() error {
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range held {
			wg.Go(func() { held[i], errs[i] = g.attach(ctx) })
		}
		wg.Wait()
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	return all.time(n, beside, func() error {
		if err := g.put(ctx, name); err != nil {
			return err
		}
		for _, a := range held {
			select {
			case <-a.Superseded():
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
}

const growthText = `A keeper keeps names of 2 MiB each. What is measured is said in the heads; there is no rival.`

const namesText = "Put makes a version more of one name, from connecting to its being committed; list is a conversation about all names; attach maps one and lets go of it; restart is from the exec of a keeper, after the last one was killed, to its serving all of them."

const readersText = "The readers are in one process. All attach at once; then a version is put, until every reader has been told."

// growAndReport measures growth and reports it.
func growAndReport(ctx context.Context, dev *cu.Device, s settings, c crowd, dir string, stdout io.Writer) error {
	names, readers, err := measureGrowth(ctx, dev, s, c)
	if err != nil {
		return err
	}
	r := &report.Report{
		Name: "keeper-growth", Machine: report.MachineOf(dev.Driver()), Text: growthText,
		Raw: report.Table{Head: []string{"of", "number", "what", "round", "ns"}},
	}
	names.report(r, "With so many names", namesText)
	readers.report(r, "With so many readers of one name", readersText)
	return r.Write(dir, stdout)
}
