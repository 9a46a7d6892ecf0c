// Chunks measures what many chunks of memory cost: whether one driver call for
// all of them is worth it, and whether several goroutines are.
//
//	chunks [-driver cuda|soft] [-c COMMAND] [-chunks N,…] [-rounds N] [-budget D] [-out DIR]
//
// COMMAND, with commas between its words, makes the bare calls, as bench/c/chunks.c
// does. Chunks prints a table, and writes chunks.csv and chunks.md to the directory
// of -out. It exits with 2 for a mistake in the flags, with 3 where there is no
// driver, and with 1 for other failures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/stats"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/vmm"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

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
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	chunks := numbers{1, 16, 256, 4096}
	var command []string
	flags := flag.NewFlagSet("chunks", flag.ContinueOnError)
	driver := flags.String("driver", "cuda", "driver to measure, `cuda|soft`")
	flags.Var(&chunks, "chunks", "`numbers` of chunks, each of the granularity's size")
	flags.Func("c", "`command` that makes the bare calls, as bench/c/chunks.c does", func(s string) error {
		command = strings.Split(s, ",")
		return nil
	})
	budget := flags.Duration("budget", 0, "`time` after which everything is measured once more at most; 0 is no limit")
	rounds := flags.Int("rounds", 10, "how often each is measured")
	importer := flags.Bool("importer", false, "be what imports, which the program starts")
	out := flags.String("out", "", "`directory` to write chunks.csv and chunks.md to; none: print only")
	return program.Run(flags, args, stdout, stderr, func() error {
		if *rounds < 1 || *budget < 0 || slices.Max(chunks) > vmm.MaxChunks {
			return cli.Usagef("-rounds %d -budget %s -chunks %s: want at least one round, no negative time, and %d chunks at most", *rounds, *budget, &chunks, vmm.MaxChunks)
		}
		drv, err := program.Open(*driver)
		if err != nil {
			return err
		}
		if *importer {
			return serveImports(drv, stdin, stdout)
		}
		p := plan{chunks: chunks, rounds: *rounds, command: command}
		if *budget > 0 {
			p.until = time.Now().Add(*budget)
		}
		return p.measureAndReport(drv, *out, stdout)
	})
}

// A plan is what is measured.
type plan struct {
	chunks  []int
	rounds  int
	command []string  // of C
	until   time.Time // when there are no more rounds; zero is never
}

func (p plan) over() bool { return !p.until.IsZero() && time.Now().After(p.until) }

// measureAndReport prints what was measured, and writes it to dir if that is not
// empty.
func (p plan) measureAndReport(drv *cu.Driver, dir string, stdout io.Writer) error {
	dev, err := drv.Device(0)
	if err != nil {
		return err
	}
	r, err := p.measure(dev)
	if err != nil {
		return err
	}
	for _, t := range r.Tables {
		for _, row := range t.Rows {
			fmt.Fprintln(stdout, strings.Join(row, "\t"))
		}
	}
	if dir == "" {
		return nil
	}
	return r.Write(dir)
}

// measure makes the report.
func (p plan) measure(dev *cu.Device) (*report.Report, error) {
	w, err := newWhole(context.Background(), dev, slices.Max(p.chunks), p.command)
	if err != nil {
		return nil, err
	}
	r, err := p.both(dev, w)
	return r, errors.Join(err, w.close())
}

// both measures what consumers do, and single calls.
func (p plan) both(dev *cu.Device, w *whole) (*report.Report, error) {
	r := &report.Report{
		Name:    "chunks",
		Title:   "What many chunks cost",
		Machine: report.MachineOf(dev.Driver()),
		Text:    "Each driver call for chunks of the granularity's size, per chunk: for all of them at once where that can be, and from several goroutines where order does not matter. The ways take turns in every round, in rotating order.",
		Raw:     report.Table{Head: []string{"chunks", "call", "how", "round", "ns_per_chunk"}},
	}
	t := report.Table{Name: "chunks", Title: "Single calls, per chunk", Head: []string{"chunks", "call", "how", "median", "best"}}
	for _, n := range p.chunks {
		s := samples{}
		for turn := range p.rounds {
			if turn > 0 && p.over() {
				break
			}
			// A call for one chunk is too short to be measured once.
			if err := w.measure(context.Background(), n, max(1, 32/n)); err != nil {
				return nil, err
			}
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
	w.report(r, p.chunks)
	return r, nil
}
