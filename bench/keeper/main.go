// Keeper measures what a keeper's users wait for: loading a model's file into GPU
// memory, beside safetensors' load_file and the limit of the link, and attaching
// to what a keeper keeps, beside the bare driver calls in C. Then it kills keepers
// under a reader.
//
//	keeper -gpufd PATH [-c COMMAND] [-python COMMAND] [-load SIZE] [-attach SIZE]
//	       [-rounds N] [-dir DIR] [-driver cuda|soft] [-out DIR]
//	keeper -growth -gpufd PATH [-names N] [-readers N] [-rounds N] [-budget D] [-driver cuda|soft] [-out DIR]
//
// With -growth it measures a keeper with more and more names and readers, and writes
// keeper-growth.csv.
// A COMMAND has commas between its words. What is not named is left out, and the
// report says so. It prints tables, and writes keeper.csv to the directory of -out. It exits with 2 for a mistake in the flags, with 3 where there
// is no driver, and with 1 for other failures.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// settings are what the flags say.
type settings struct {
	gpufd        string
	c, python    string // with commas between words
	load, attach cli.Size
	rounds       int
	dir          string
}

// run is the program; it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	s := settings{load: 16 << 30, attach: 64 << 30}
	flags := flag.NewFlagSet("keeper", flag.ContinueOnError)
	flags.StringVar(&s.gpufd, "gpufd", "", "`path` of the command gpufd, whose keeper is measured")
	flags.StringVar(&s.c, "c", "", "`command` that makes the bare calls, as bench/c/attach.c does")
	flags.StringVar(&s.python, "python", "", "`command` that loads files, as bench/python/load_file.py does")
	flags.Var(&s.load, "load", "`size` of the file that is loaded")
	flags.Var(&s.attach, "attach", "`size` of what is attached to")
	flags.IntVar(&s.rounds, "rounds", 5, "how often each is measured")
	flags.StringVar(&s.dir, "dir", os.TempDir(), "`directory` for the file, which should lie in memory")
	c := crowd{}
	growth := flags.Bool("growth", false, "measure a keeper with more and more names and readers")
	flags.IntVar(&c.names, "names", 1000, "with -growth: the largest `number` of names")
	flags.IntVar(&c.readers, "readers", 256, "with -growth: the largest `number` of readers of a name")
	flags.DurationVar(&c.budget, "budget", 0, "with -growth: `time` after which larger numbers are left out; 0 is no limit")
	driver := flags.String("driver", "cuda", "driver to measure, `cuda|soft`")
	out := flags.String("out", "", "`directory` to write keeper.csv to; none: print only")
	return program.Run(flags, args, stdout, stderr, func() error {
		if s.rounds < 1 || s.load == 0 || s.attach == 0 || s.gpufd == "" || min(c.names, c.readers) < 1 || c.budget < 0 {
			return cli.Usagef("want -gpufd, sizes above 0 and at least one round; -h explains")
		}
		drv, err := cli.OpenDriver(*driver)
		if err != nil {
			return err
		}
		dev, err := drv.Device(0)
		if err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if *growth {
			return growAndReport(ctx, dev, s, c, *out, stdout)
		}
		return measureAndReport(ctx, dev, s, *out, stdout)
	})
}

func measureAndReport(ctx context.Context, dev *cu.Device, s settings, dir string, stdout io.Writer) error {
	loads, err := measureLoads(ctx, dev, s)
	if err != nil {
		return fmt.Errorf("loading: %w", err)
	}
	k, err := measureKept(ctx, dev, s)
	if err != nil {
		return fmt.Errorf("keeping: %w", err)
	}
	r := makeReport(report.MachineOf(dev.Driver()), s, loads, k)
	return r.Write(dir, stdout)
}
