//go:build cgo

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program; it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	err := bench(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return cli.ExitOK
	}
	if err != nil {
		fmt.Fprintln(stderr, "calls:", strings.Join(strings.Fields(err.Error()), " "))
	}
	return cli.ExitCode(err)
}

func bench(args []string, stdout io.Writer) error {
	var p plan
	flags := flag.NewFlagSet("calls", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	driver := flags.String("driver", "cuda", "driver to measure, `cuda|soft`")
	flags.IntVar(&p.rounds, "rounds", 30, "how often each way of each call is measured")
	flags.DurationVar(&p.time, "time", 10*time.Millisecond, "for how long each time")
	out := flags.String("out", "", "`directory` to write calls.csv, calls.md and the plots to; none: print only")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(stdout)
		flags.Usage()
		return err
	case err != nil:
		return cli.Usagef("%w", err)
	case flags.NArg() > 0:
		return cli.Usagef("unexpected argument %q", flags.Arg(0))
	case *driver != "cuda" && *driver != "soft":
		return cli.Usagef("-driver %q: want cuda or soft", *driver)
	case p.rounds < 1:
		return cli.Usagef("-rounds %d: want at least 1", p.rounds)
	}
	drv, err := open(*driver)
	if err != nil {
		return cli.Machinef("%w", err)
	}
	return measureAndReport(drv, p, *out, stdout)
}

// measureAndReport measures the calls of a driver and writes the report.
func measureAndReport(drv *cu.Driver, p plan, dir string, stdout io.Writer) (err error) {
	s, err := newStage(drv)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	calls, cannot := s.calls()
	p.drain = s.drain
	r, err := p.measure(calls)
	if err != nil {
		return err
	}
	rep := newReport(drv, calls, cannot, r)
	if dir != "" {
		if err := rep.Write(dir); err != nil {
			return err
		}
	}
	fmt.Fprintf(stdout, "%s, %d rounds\n\n", drv, p.rounds)
	return show(stdout, rep, medians(calls, r))
}
