// Command handoff measures what it takes to hand a fresh buffer to another
// process: ours, C and Python turn about, each in processes of its own. With
// -as producer it is ours, which uses the public API only.
package main

import (
	"context"
	"flag"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/internal/cli"
)

type options struct {
	rivals     rival.Commands
	sizes      []uint64
	iterations int
	time       time.Duration
	budget     time.Duration
	until      time.Time // when no other point is begun; zero is never
	out        string
}

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the program; it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	o := options{sizes: []uint64{2 << 20, 64 << 20, 512 << 20, 8 << 30, 64 << 30}}
	flags := flag.NewFlagSet("handoff", flag.ContinueOnError)
	flags.Var(&o.rivals, "rival", "`NAME=COMMAND,ARG,…` of a program to measure; give it several times, ours first")
	flags.IntVar(&o.iterations, "iterations", 200, "at most this `number` of handoffs for each rival and size")
	flags.DurationVar(&o.time, "time", 12*time.Second, "and at most this `time`, for all rivals together")
	flags.DurationVar(&o.budget, "budget", 0, "`time` for everything, after which points are left out; 0 is no limit")
	flags.StringVar(&o.out, "out", "", "write handoff.csv into this `directory`")
	as := flags.String("as", "", "be `producer|consumer`, ours")
	driver := flags.String("driver", "cuda", "driver of ours, `cuda|soft`")
	socket := flags.String("socket", "", "of a consumer: the `path` at which its producer listens")
	refused := cli.ExitOK
	code := program.Run(flags, args, stdout, stderr, func() error {
		if *as != "" {
			err := beHalf(*as, *driver, *socket, stdin, stdout)
			if refused = cli.ExitCode(err); err != nil { // who started it is told why, and nobody else
				return rival.Refuse(stdout, err)
			}
			return nil
		}
		if err := o.check(); err != nil {
			return err
		}
		if o.budget > 0 {
			o.until = time.Now().Add(o.budget)
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return handoffs(ctx, o, stdout, stderr)
	})
	return max(code, refused)
}

// beHalf is our producer or a consumer of its: it answers until stdin ends, and lets go of everything.
func beHalf(as, driver, socket string, stdin io.Reader, stdout io.Writer) error {
	switch as {
	case "producer":
		p, err := newProducer(driver)
		if err != nil {
			return err
		}
		return p.serve(stdin, stdout)
	case "consumer":
		c, err := newConsumer(driver, socket)
		if err != nil {
			return err
		}
		return c.serve(stdin, stdout)
	}
	return cli.Usagef("-as %q: want producer or consumer", as)
}

// patience bounds every step of a handoff.
const patience = time.Minute

// bounded is a context for one step.
func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

// over reports whether the time is.
func (o options) over() bool { return !o.until.IsZero() && time.Now().After(o.until) }

// check refuses what flag parsing cannot, and a directory that cannot be made, before minutes of measuring.
func (o options) check() error {
	switch {
	case len(o.rivals) == 0:
		return cli.Usagef("want at least one -rival; -h explains")
	case o.iterations < 1 || o.time <= 0 || o.budget < 0:
		return cli.Usagef("want positive numbers; -h explains")
	}
	if o.out == "" {
		return nil
	}
	return os.MkdirAll(o.out, 0o755)
}
