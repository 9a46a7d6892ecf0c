//go:build cgo

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program; it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	var p plan
	flags := flag.NewFlagSet("calls", flag.ContinueOnError)
	driver := flags.String("driver", "cuda", "driver to measure, `cuda|soft`")
	flags.IntVar(&p.rounds, "rounds", 30, "how often each way of each call is measured")
	flags.DurationVar(&p.time, "time", 10*time.Millisecond, "for how long each time")
	out := flags.String("out", "", "`directory` to write calls.csv, calls.md and the plots to; none: print only")
	return program.Run(flags, args, stdout, stderr, func() error {
		if p.rounds < 1 || p.time < 0 {
			return cli.Usagef("-rounds %d -time %s: want at least one round, and no negative time", p.rounds, p.time)
		}
		drv, err := program.Open(*driver)
		if err != nil {
			return err
		}
		return measureAndReport(drv, p, *out, stdout)
	})
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
	fmt.Fprintf(stdout, "%s, %d rounds\n\n", drv, p.rounds)
	if err := show(stdout, rep, medians(calls, r)); err != nil || dir == "" {
		return err
	}
	return rep.Write(dir)
}
