// Chunks measures what many chunks of memory cost: whether one driver call for
// all of them is worth it, and whether several goroutines are.
//
//	chunks [-driver cuda|soft] [-chunks N,…] [-rounds N] [-out DIR]
//
// It prints a table and writes chunks.csv and chunks.md to the directory of
// -out. It exits with 2 for a mistake in the flags, with 3 where there is no
// driver, and with 1 for other failures.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
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
		fmt.Fprintln(stderr, "chunks:", strings.Join(strings.Fields(err.Error()), " "))
	}
	return cli.ExitCode(err)
}

// numbers is a list of positive numbers.
type numbers []int

func (l *numbers) String() string { return strings.Trim(fmt.Sprint([]int(*l)), "[]") }

func (l *numbers) Set(s string) error {
	*l = nil
	for _, word := range strings.Split(s, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return fmt.Errorf("%q: want positive numbers", word)
		}
		*l = append(*l, n)
	}
	return nil
}

func bench(args []string, stdout io.Writer) error {
	chunks := numbers{64, 1024}
	flags := flag.NewFlagSet("chunks", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	driver := flags.String("driver", "cuda", "driver to measure, `cuda|soft`")
	flags.Var(&chunks, "chunks", "`numbers` of chunks, each of the granularity's size")
	rounds := flags.Int("rounds", 10, "how often each is measured")
	out := flags.String("out", "", "`directory` to write chunks.csv and chunks.md to; none: print only")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(stdout)
		flags.Usage()
		return err
	case err != nil:
		return cli.Usagef("%w", err)
	case flags.NArg() > 0:
		return cli.Usagef("unexpected argument %q", flags.Arg(0))
	case *rounds < 1:
		return cli.Usagef("-rounds %d: want at least 1", *rounds)
	}
	dev, err := open(*driver)
	if err != nil {
		return err
	}
	r, err := measure(dev, chunks, *rounds)
	if err != nil {
		return err
	}
	for _, row := range r.Tables[0].Rows {
		fmt.Fprintln(stdout, strings.Join(row, "\t"))
	}
	if *out == "" {
		return nil
	}
	return r.Write(*out)
}

// open opens the driver's first device.
func open(driver string) (*cu.Device, error) {
	var opts []cu.Option
	switch driver {
	case "cuda":
	case "soft":
		opts = append(opts, cu.WithResolver(soft.Resolver))
	default:
		return nil, cli.Usagef("-driver %q: want cuda or soft", driver)
	}
	drv, err := cu.Open(opts...)
	if err != nil {
		return nil, cli.Machinef("%w", err)
	}
	return drv.Device(0)
}

// measure makes the report.
func measure(dev *cu.Device, chunks []int, rounds int) (*report.Report, error) {
	r := &report.Report{
		Name:    "chunks",
		Title:   "What many chunks cost",
		Machine: report.ThisMachine(),
		Text:    "Each driver call for chunks of the granularity's size, per chunk: for all of them at once where that can be, and from several goroutines where order does not matter.",
		Raw:     report.Table{Head: []string{"chunks", "call", "how", "round", "ns_per_chunk"}},
	}
	t := report.Table{Name: "chunks", Title: "Per chunk", Head: []string{"chunks", "call", "how", "median", "best"}}
	for _, n := range chunks {
		s := samples{}
		for range rounds {
			if err := s.round(dev, n); err != nil {
				return nil, err
			}
		}
		for _, x := range s.order {
			sum := stats.Summarize(s.ns[x])
			t.Rows = append(t.Rows, []string{fmt.Sprint(n), x.call, x.how, report.Duration(sum.P50), report.Duration(sum.Min)})
			for i, ns := range s.ns[x] {
				r.Raw.Rows = append(r.Raw.Rows, []string{fmt.Sprint(n), x.call, x.how, fmt.Sprint(i), fmt.Sprintf("%.1f", ns)})
			}
		}
	}
	r.Tables = []report.Table{t}
	return r, nil
}
