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
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

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

// run is the program; it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	chunks := numbers{64, 1024}
	flags := flag.NewFlagSet("chunks", flag.ContinueOnError)
	driver := flags.String("driver", "cuda", "driver to measure, `cuda|soft`")
	flags.Var(&chunks, "chunks", "`numbers` of chunks, each of the granularity's size")
	rounds := flags.Int("rounds", 10, "how often each is measured")
	out := flags.String("out", "", "`directory` to write chunks.csv and chunks.md to; none: print only")
	return program.Run(flags, args, stdout, stderr, func() error {
		if *rounds < 1 {
			return cli.Usagef("-rounds %d: want at least 1", *rounds)
		}
		drv, err := program.Open(*driver)
		if err != nil {
			return err
		}
		return measureAndReport(drv, chunks, *rounds, *out, stdout)
	})
}

// measureAndReport prints what was measured, and writes it to dir if that is not
// empty.
func measureAndReport(drv *cu.Driver, chunks []int, rounds int, dir string, stdout io.Writer) error {
	dev, err := drv.Device(0)
	if err != nil {
		return err
	}
	r, err := measure(dev, chunks, rounds)
	if err != nil {
		return err
	}
	for _, row := range r.Tables[0].Rows {
		fmt.Fprintln(stdout, strings.Join(row, "\t"))
	}
	if dir == "" {
		return nil
	}
	return r.Write(dir)
}

// measure makes the report.
func measure(dev *cu.Device, chunks []int, rounds int) (*report.Report, error) {
	r := &report.Report{
		Name:    "chunks",
		Title:   "What many chunks cost",
		Machine: program.Machine(dev.Driver()),
		Text:    "Each driver call for chunks of the granularity's size, per chunk: for all of them at once where that can be, and from several goroutines where order does not matter. The ways take turns in every round, in rotating order.",
		Raw:     report.Table{Head: []string{"chunks", "call", "how", "round", "ns_per_chunk"}},
	}
	t := report.Table{Name: "chunks", Title: "Per chunk", Head: []string{"chunks", "call", "how", "median", "best"}}
	for _, n := range chunks {
		s := samples{}
		for turn := range rounds {
			if err := s.round(dev, n, turn); err != nil {
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
