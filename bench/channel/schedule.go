package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/bench/internal/stats"
)

// settings are what the flags say.
type settings struct {
	rivals rival.Commands
	frames rival.Commands // they know no other question
	rounds int
	time   time.Duration
	quick  bool
	two    bool // readers are on a device of their own
}

// A question is what rivals are asked, as bench/README.md has it.
type question struct {
	kind    string // "oneway", "hosts", "frames"
	readers int
	size    uint64
	slots   int
	copies  bool
	count   int
}

// String is the line.
func (q question) String() string {
	switch q.kind {
	case "oneway":
		return fmt.Sprintf("oneway %d %d", q.readers, q.count)
	case "hosts":
		return fmt.Sprintf("hosts %d", q.count)
	}
	what := 0
	if q.copies {
		what = 1
	}
	return fmt.Sprintf("frames %d %d %d %d", q.size, q.slots, what, q.count)
}

// plan is what is asked; frames come first, while there is one reader's process.
func (s settings) plan() (all []question) {
	sizes, readers := []uint64{4 << 10, 128 << 10, 4 << 20, 64 << 20}, []int{1, 4, 16}
	if s.quick {
		sizes, readers = []uint64{4 << 10, 8 << 10}, []int{1, 2}
	}
	ways, more := []bool{false, true}, []int{2, 4, 16, 32}
	if s.two { // the copy to the host is as on one device, and so is what hosts do
		readers, ways, more = readers[:1], ways[:1], nil
	}
	for _, copies := range ways {
		for _, size := range sizes {
			all = append(all, question{kind: "frames", size: size, slots: 8, copies: copies, count: framesOf(size)})
		}
	}
	for _, slots := range more { // what slots gain
		all = append(all, question{kind: "frames", size: sizes[1], slots: slots, count: framesOf(sizes[1])})
	}
	hosts, rounds := 20_000, 512
	if s.quick {
		hosts, rounds = 100, 4*chunk
	}
	if !s.two {
		all = append(all, question{kind: "hosts", count: hosts})
	}
	for _, n := range readers {
		all = append(all, question{kind: "oneway", readers: n, count: rounds})
	}
	if s.quick {
		for i := range all {
			if all[i].kind == "frames" {
				all[i].count = 2 * ahead
			}
		}
	}
	return all
}

// framesOf is how many frames of that size are passed.
func framesOf(size uint64) int {
	if size > 32<<20 {
		return 2 * ahead
	}
	return 16 * ahead
}

// answers are those to one question: for each rival one a round.
type answers map[string][]rival.Answer

// A field is all rivals, and what they answered.
type field struct {
	settings
	*rival.Field
	asked []question
	got   []answers
}

// compare asks everybody everything.
func (s settings) compare(ctx context.Context, stderr io.Writer) (_ *report.Report, err error) {
	f := &field{settings: s}
	if f.Field, err = rival.StartAll(ctx, slices.Concat(s.rivals, s.frames), stderr); err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // what they answered counts
	begin := time.Now()
	for _, q := range s.plan() {
		got := answers{}
		for round := range s.rounds {
			if round > 0 && time.Since(begin) > s.time {
				break
			}
			err := f.TakeTurns(ctx, round, func(r *rival.Rival) error {
				if q.slots != 8 && !f.whole(r.Name) {
					return nil
				}
				a, err := rival.Ask(ctx, r, q.String())
				if err == nil {
					got[r.Name] = append(got[r.Name], a)
				}
				return err
			})
			if err != nil {
				return nil, err
			}
		}
		f.asked, f.got = append(f.asked, q), append(f.got, got)
	}
	return f.report(), nil
}

// whole reports whether a rival knows all questions.
func (s settings) whole(name string) bool {
	return slices.ContainsFunc(s.rivals, func(c rival.Command) bool { return c.Name == name })
}

// names are those of the rivals that are asked a question.
func (s settings) names(q question) (all []string) {
	for _, c := range s.rivals {
		all = append(all, c.Name)
	}
	if q.slots == 8 {
		for _, c := range s.frames {
			all = append(all, c.Name)
		}
	}
	return all
}

// samples are the rounds of a rival, in ns: one number each, of those in each answer.
func samples(all []rival.Answer, of func(rival.Answer) float64) (xs []float64) {
	for _, a := range all {
		xs = append(xs, of(a))
	}
	return xs
}

// perFrame, half and tail are such numbers.
func perFrame(a rival.Answer) float64 { return float64(a.NS) }
func half(a rival.Answer) float64     { return stats.Summarize(floats(a.Each)).P50 }
func tail(a rival.Answer) float64     { return stats.Summarize(floats(a.Each)).P99 }

func floats(ns []int64) []float64 {
	xs := make([]float64, len(ns))
	for i, n := range ns {
		xs[i] = float64(n)
	}
	return xs
}

// of are the answers to questions of a kind, with the questions.
func (f *field) of(kind string) func(yield func(question, answers) bool) {
	return func(yield func(question, answers) bool) {
		for i, q := range f.asked {
			if q.kind == kind && !yield(q, f.got[i]) {
				return
			}
		}
	}
}
