// Command handoff measures what it takes to hand a fresh buffer to another
// process: ours, C and Python turn about, each in processes of its own. It
// writes a table of handoffs by size, and one of how they grow.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

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
	if !ok || name == "" || argv[0] == "" {
		return errors.New("want NAME=COMMAND,ARG,…")
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
	largest    cli.Size
	chunks     int
	consumers  int
	iterations int
	time       time.Duration
	starts     int
	out        string
}

const granularity = 2 << 20

func main() {
	o := options{sizes: sizes{2 << 20, 64 << 20, 512 << 20, 8 << 30, 64 << 30}, largest: 128 << 30}
	flag.Var(&o.rivals, "rival", "`NAME=COMMAND,ARG,…` of a program to measure; give it several times, ours first")
	flag.Var(&o.sizes, "sizes", "`sizes` to hand over")
	flag.BoolVar(&o.growth, "growth", false, "measure growth with size, chunks, consumers, and from the start of the processes")
	flag.Var(&o.largest, "largest", "with -growth: the largest `size`")
	flag.IntVar(&o.chunks, "chunks", 4096, "with -growth: the largest `number` of chunks")
	flag.IntVar(&o.consumers, "consumers", 256, "with -growth: the largest `number` of consumers")
	flag.IntVar(&o.starts, "starts", 5, "with -growth: how `often` the processes are started")
	flag.IntVar(&o.iterations, "iterations", 200, "at most this `number` of handoffs for each rival and size")
	flag.DurationVar(&o.time, "time", 12*time.Second, "and at most this `time`, for all rivals together")
	flag.StringVar(&o.out, "out", ".", "write the tables into this `directory`")
	flag.Parse()
	if len(o.rivals) == 0 || flag.NArg() > 0 || min(o.iterations, o.chunks, o.consumers, o.starts) < 1 {
		fmt.Fprintln(os.Stderr, "handoff: want at least one -rival, positive numbers and no arguments; -h explains")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	measure := handoffs
	if o.growth {
		measure = growth
	}
	if err := measure(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "handoff:", err)
		os.Exit(1)
	}
}
