package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/bench/internal/stats"
)

// settings are what the flags say.
type settings struct {
	rivals []contestant
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
	ways, more := []bool{false, true}, []int{2, 16, 32}
	if s.two { // the copy to the host is as on one device, and so is what hosts do
		readers, ways, more = readers[:1], ways[:1], nil
	}
	for _, copies := range ways {
		for _, size := range sizes {
			for _, slots := range []int{4, 8} {
				all = append(all, question{kind: "frames", size: size, slots: slots, copies: copies, count: framesOf(size)})
			}
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
	there  []*rival.Rival // nil where it could not be started, or failed
	infos  []string
	asked  []question
	got    []answers
	stderr io.Writer
}

// compare asks everybody everything.
func (s settings) compare(ctx context.Context, stderr io.Writer) (*report.Report, error) {
	f := &field{settings: s, stderr: stderr, there: make([]*rival.Rival, len(s.rivals)), infos: make([]string, len(s.rivals))}
	for i, c := range s.rivals {
		start, cancel := context.WithTimeout(ctx, 2*time.Minute)
		r, err := rival.Start(start, c.name, c.argv...)
		cancel()
		if err != nil {
			f.leave(i, err)
			continue
		}
		f.there[i], f.infos[i] = r, r.Info
		defer func() { _ = r.Close() }() // what it answered counts
	}
	begin := time.Now()
	for _, q := range s.plan() {
		got := answers{}
		for round := range s.rounds {
			if round > 0 && time.Since(begin) > s.time {
				break
			}
			if err := f.ask(ctx, q, round, got); err != nil {
				return nil, err
			}
		}
		f.asked, f.got = append(f.asked, q), append(f.got, got)
	}
	if f.there[0] == nil {
		return nil, fmt.Errorf("%s was left out, and there is nothing to compare", s.rivals[0].name)
	}
	return f.report(), nil
}

// leave leaves a rival out.
func (f *field) leave(i int, why error) {
	fmt.Fprintf(f.stderr, "channel: left out: %s\n", program.OneLine(why))
	f.infos[i] = program.OneLine(why)
	f.there[i] = nil
}

// ask asks one question of all, beginning with another rival each round.
func (f *field) ask(ctx context.Context, q question, round int, got answers) error {
	for i := range f.rivals {
		i = (i + round) % len(f.rivals)
		c := f.rivals[i]
		if f.there[i] == nil || c.frames && (q.kind != "frames" || q.slots != 8) {
			continue
		}
		limit, cancel := context.WithTimeout(ctx, time.Minute)
		a, err := f.there[i].Ask(limit, "%s", q)
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			f.leave(i, fmt.Errorf("%s: %w", q, err))
			continue
		}
		got[c.name] = append(got[c.name], a)
	}
	return nil
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

// queueing is how long the host took for a frame that was queued.
func queueing(a rival.Answer) float64 {
	i := slices.IndexFunc(a.Steps, func(s rival.Step) bool { return s.Name == "queue" })
	if i < 0 {
		return 0
	}
	return float64(a.Steps[i].NS)
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
