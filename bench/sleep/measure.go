package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gpufd/gpufd/bench/internal/rival"
)

// A series is what one rival took in one shape, in nanoseconds.
type series struct{ reattach, detach []float64 }

// measured is by shape and by rival.
type measured map[shape]map[string]*series

// measure lets the rivals take turns in each shape, and reports. The first round of a shape makes its memory, and is not
// counted.
func measure(ctx context.Context, rivals rival.Commands, sizes shapes, rounds int, dir string, stdout, stderr io.Writer) error {
	field, err := rival.StartAll(ctx, rivals, stderr)
	if err != nil {
		return err
	}
	got := measured{}
	for _, s := range sizes {
		got[s] = map[string]*series{}
		for _, r := range rivals {
			got[s][r.Name] = &series{}
		}
		for round := range rounds + 1 {
			err = field.TakeTurns(ctx, round, func(r *rival.Rival) error { return got[s][r.Name].add(ctx, r, s, round > 0) })
			if err != nil {
				return errors.Join(err, field.Close())
			}
		}
	}
	report := makeReport(field, rivals, sizes, got)
	return errors.Join(report.Write(dir, stdout), field.Close())
}

// add asks a rival for a round.
func (s *series) add(ctx context.Context, r *rival.Rival, of shape, counts bool) error {
	a, err := rival.Ask(ctx, r, fmt.Sprintf("remap %d %d", of.count, of.size))
	if err != nil {
		return err
	}
	if len(a.Each) != 2 {
		return fmt.Errorf("rival %s: %d times instead of two", r.Name, len(a.Each))
	}
	if counts {
		s.reattach, s.detach = append(s.reattach, float64(a.Each[0])), append(s.detach, float64(a.Each[1]))
	}
	return nil
}
