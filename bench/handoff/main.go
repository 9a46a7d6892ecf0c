// Command handoff measures what it takes to hand a fresh buffer to another
// process: ours, C and Python turn about, each in processes of its own. It
// writes a table of handoffs by size, and one of how they grow.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/internal/cli"
)

// commands is the value of -rival: NAME=COMMAND,ARG,…, several times. The first is
// ours.
type commands []command

type command struct {
	name string
	argv []string
}

func (c *commands) String() string { return "" }

func (c *commands) Set(s string) error {
	name, line, ok := strings.Cut(s, "=")
	argv := strings.Split(line, ",")
	switch {
	case !ok || name == "" || argv[0] == "":
		return errors.New("want NAME=COMMAND,ARG,…")
	case slices.ContainsFunc(*c, func(x command) bool { return x.name == name }):
		return fmt.Errorf("there is a %s already", name)
	}
	*c = append(*c, command{name, argv})
	return nil
}

// sizes is a list of sizes in bytes.
type sizes []uint64

func (l *sizes) String() string {
	var words []string
	for _, n := range *l {
		words = append(words, cli.Size(n).String())
	}
	return strings.Join(words, ",")
}

func (l *sizes) Set(s string) error {
	*l = nil
	for _, word := range strings.Split(s, ",") {
		var n cli.Size
		if err := n.Set(word); err != nil {
			return err
		}
		if n%granularity != 0 {
			return fmt.Errorf("%s: want multiples of %s", word, cli.Size(granularity))
		}
		*l = append(*l, uint64(n))
	}
	return nil
}

type options struct {
	rivals     commands
	sizes      sizes
	growth     bool
	why        bool
	name       string
	largest    cli.Size
	chunks     int
	consumers  int
	iterations int
	time       time.Duration
	budget     time.Duration
	until      time.Time // when no other point is begun; zero is never
	starts     int
	out        string
}

const granularity = 2 << 20

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program; it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	o := options{sizes: sizes{2 << 20, 64 << 20, 512 << 20, 8 << 30, 64 << 30}, largest: 128 << 30}
	flags := flag.NewFlagSet("handoff", flag.ContinueOnError)
	flags.Var(&o.rivals, "rival", "`NAME=COMMAND,ARG,…` of a program to measure; give it several times, ours first")
	flags.Var(&o.sizes, "sizes", "`sizes` to hand over")
	flags.BoolVar(&o.growth, "growth", false, "measure growth with size, chunks, consumers, and from the start of the processes")
	flags.BoolVar(&o.why, "why", false, "measure where the times of rivals differ that do almost the same")
	flags.StringVar(&o.name, "name", "why", "with -why: the `name` of the report")
	flags.Var(&o.largest, "largest", "with -growth: the largest `size`")
	flags.IntVar(&o.chunks, "chunks", 4096, "with -growth: the largest `number` of chunks")
	flags.IntVar(&o.consumers, "consumers", 256, "with -growth: the largest `number` of consumers")
	flags.IntVar(&o.starts, "starts", 5, "with -growth: how `often` the processes are started")
	flags.IntVar(&o.iterations, "iterations", 200, "at most this `number` of handoffs for each rival and size")
	flags.DurationVar(&o.time, "time", 12*time.Second, "and at most this `time`, for all rivals together")
	flags.DurationVar(&o.budget, "budget", 0, "`time` for everything, after which points are left out; 0 is no limit")
	flags.StringVar(&o.out, "out", ".", "write the tables into this `directory`")
	return program.Run(flags, args, stdout, stderr, func() error {
		if err := o.check(); err != nil {
			return err
		}
		o.until = o.deadline(1)
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		measure := handoffs
		switch {
		case o.growth:
			measure = growth
		case o.why:
			measure = why
		}
		return measure(ctx, o)
	})
}

// deadline is when that part of the budget is over, from now on.
func (o options) deadline(part float64) (t time.Time) {
	if o.budget > 0 {
		t = time.Now().Add(time.Duration(part * float64(o.budget)))
	}
	return t
}

// over says whether the time is.
func (o options) over() bool { return !o.until.IsZero() && time.Now().After(o.until) }

// check holds what flag parsing cannot, and that the tables can be written,
// which is known better before minutes of measuring.
func (o options) check() error {
	switch {
	case len(o.rivals) == 0:
		return cli.Usagef("want at least one -rival; -h explains")
	case min(o.iterations, o.chunks, o.consumers, o.starts) < 1 || o.time <= 0 || o.budget < 0:
		return cli.Usagef("want positive numbers; -h explains")
	case o.largest < granularity:
		return cli.Usagef("-largest %s: want at least %s", o.largest, cli.Size(granularity))
	}
	return os.MkdirAll(o.out, 0o755)
}
