// Readers measures how a channel grows with its readers, of which each is a process: ours and C.
//
//	readers -rival NAME=COMMAND,ARG,… … [-most N] [-rounds N] [-budget D] [-out DIR]
//
// The rivals are those of command channel, and are asked "oneway READERS ROUNDS" as bench/README.md
// says, the first one ours and the second the one that it is held against. One comes after the other:
// the readers of one make room on the device for those of the next. It prints the bars and writes
// channel-readers.csv and channel-readers.md. It exits with 2 for a mistake in the flags, and with 1
// for other failures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program; it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	var s settings
	flags := flag.NewFlagSet("readers", flag.ContinueOnError)
	flags.Func("rival", "a rival, `NAME=COMMAND,ARG,…`; the first is ours, the second the one that it is held against", s.rival)
	flags.IntVar(&s.most, "most", 64, "the largest `number` of readers")
	flags.IntVar(&s.rounds, "rounds", 256, "how many frames are passed, by 16")
	flags.DurationVar(&s.budget, "budget", 0, "`time` after which larger numbers are left out; 0 is no limit")
	out := flags.String("out", "", "`directory` to write channel-readers.csv and channel-readers.md to; none: print only")
	return program.Run(flags, args, stdout, stderr, func() error {
		if len(s.names) == 0 || s.most < 1 || s.rounds < 1 || s.rounds%16 != 0 || s.budget < 0 {
			return cli.Usagef("want a rival, a reader at least, rounds by 16 and no negative time; -h explains")
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		r, err := s.measure(ctx, stderr)
		if err != nil {
			return err
		}
		for _, b := range r.Bars {
			fmt.Fprintf(stdout, "%s: %s, bar %s, met: %t\n", b.Claim, report.Exponent(b.Got), report.Exponent(b.Limit), b.Met())
		}
		if *out == "" {
			return nil
		}
		return r.Write(*out)
	})
}

// settings are what the flags say.
type settings struct {
	names        []string
	argv         [][]string
	most, rounds int
	budget       time.Duration
}

func (s *settings) rival(text string) error {
	name, command, ok := strings.Cut(text, "=")
	if !ok || name == "" || command == "" {
		return errors.New("want NAME=COMMAND,ARG,…")
	}
	s.names, s.argv = append(s.names, name), append(s.argv, strings.Split(command, ","))
	return nil
}

// points are the numbers of readers.
func (s settings) points() (all []int) {
	for n := 1; n < s.most; n *= 4 {
		all = append(all, n)
	}
	return append(all, s.most)
}

// A line is what one rival answered.
type line struct {
	name   string
	points []int
	way    [][]float64 // of one frame, for each point
	queue  []float64   // the host's time to queue a frame, for each point
	absent string      // why it was not measured, or not further
}

// patience bounds one question; in it, the readers' processes start.
const patience = time.Minute

// measure asks one rival after the other.
func (s settings) measure(ctx context.Context, stderr io.Writer) (*report.Report, error) {
	var all []*line
	for i, name := range s.names {
		l := &line{name: name}
		if err := s.ask(ctx, l, s.argv[i]); err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			l.absent = program.OneLine(err)
			fmt.Fprintln(stderr, "readers: left out:", l.absent)
		}
		all = append(all, l)
	}
	if len(all[0].points) == 0 {
		return nil, fmt.Errorf("%s was left out, and there is nothing to report: %s", all[0].name, all[0].absent)
	}
	return s.report(all), nil
}

// ask asks a rival for all points within its part of the budget.
func (s settings) ask(ctx context.Context, l *line, argv []string) (err error) {
	until := time.Now().Add(s.budget / time.Duration(len(s.names)))
	limited, cancel := context.WithTimeout(ctx, patience)
	r, err := rival.Start(limited, l.name, argv...)
	cancel()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // what it answered counts
	for i, n := range s.points() {
		if i > 0 && s.budget > 0 && time.Now().After(until) {
			return fmt.Errorf("%s: %d readers and more: the time for all of it was over", l.name, n)
		}
		limited, cancel := context.WithTimeout(ctx, patience)
		a, err := r.Ask(limited, "oneway %d %d", n, s.rounds)
		cancel()
		if err != nil {
			return fmt.Errorf("%d readers and more: %w", n, err)
		}
		l.add(n, a)
	}
	return nil
}

func (l *line) add(n int, a rival.Answer) {
	way, queue := make([]float64, len(a.Each)), math.NaN()
	for i, ns := range a.Each {
		way[i] = float64(ns)
	}
	for _, s := range a.Steps {
		if s.Name == "queue" {
			queue = float64(s.NS)
		}
	}
	l.points, l.way, l.queue = append(l.points, n), append(l.way, way), append(l.queue, queue)
}

func (l *line) p50(i int) float64 { return stats.Summarize(l.way[i]).P50 }

// exponents are those of one way and of queueing.
func (l *line) exponents() (way, queue float64) {
	var xs, ys []float64
	for i, n := range l.points {
		xs, ys = append(xs, float64(n)), append(ys, l.p50(i))
	}
	return stats.Exponent(xs, ys), stats.Exponent(xs, l.queue)
}

const about = `A writer's stream passes frames to the streams of more and more readers, each a process with a context of its own on the same
device. One way is half of there and back: the last reader to join answers, by a channel of its own. Queue is the time that the
writer's host takes to queue a frame for all readers. One rival is measured after the other, so only how each grows can be compared. The
exponent is the slope of log time over log readers, by least squares over the larger half of the points: 1 is linear.`

func (s settings) report(all []*line) *report.Report {
	r := &report.Report{
		Name: "channel-readers", Title: "How a channel grows with its readers", Machine: report.ThisMachine(), Text: about,
		Raw: report.Table{Head: []string{"rival", "readers", "what", "ns"}},
	}
	t := report.Table{Title: "By readers", Head: []string{"rival", "readers", "one way, p50", "one way, p99", "queue"}}
	for _, l := range all {
		for i, n := range l.points {
			t.Rows = append(t.Rows, []string{l.name, fmt.Sprint(n), report.Duration(l.p50(i)), report.Duration(stats.Summarize(l.way[i]).P99), report.Duration(l.queue[i])})
			for _, ns := range l.way[i] {
				r.Raw.Rows = append(r.Raw.Rows, []string{l.name, fmt.Sprint(n), "way", fmt.Sprintf("%.0f", ns)})
			}
			r.Raw.Rows = append(r.Raw.Rows, []string{l.name, fmt.Sprint(n), "queue", fmt.Sprintf("%.0f", l.queue[i])})
		}
		way, queue := l.exponents()
		t.Rows = append(t.Rows, []string{l.name, "exponent", report.Exponent(way), "", report.Exponent(queue)})
		if l.absent != "" {
			t.Text += "\n- Not measured, or not further: " + l.absent + "."
		}
	}
	way, queue := all[0].exponents()
	against, ofQueue, name := math.NaN(), math.NaN(), "a rival"
	if len(all) > 1 {
		against, ofQueue = all[1].exponents()
		name = all[1].name
	}
	r.Tables = []report.Table{t}
	r.Bars = []report.Bar{
		{Claim: fmt.Sprintf("exponent of one way over readers, against that of %s if it is above 1", name), Limit: stats.LinearLimit(against), Got: way},
		{Claim: fmt.Sprintf("exponent of queueing over readers, against that of %s if it is above 1", name), Limit: stats.LinearLimit(ofQueue), Got: queue},
	}
	return r
}
