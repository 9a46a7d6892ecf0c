// Command crossing measures what a call from Go into C costs: gpufd's own
// crossing, purego's two, and cgo's, if it was built with that.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run returns the exit code: 1 if something failed, 2 for wrong flags.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("crossing", flag.ContinueOnError)
	flags.SetOutput(stderr)
	rounds := flags.Int("rounds", 25, "how often each way is measured")
	d := flags.Duration("time", 20*time.Millisecond, "how long each way makes calls, in each round and form of call")
	dir := flags.String("out", "", "directory for "+reportName+".md, .csv and .svg; none: print only")
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), "usage: crossing [-rounds N] [-time D] [-out DIR]\n\n"+
			"Compares the ways to call C from Go, and prints time and allocations of a call.\n\n")
		flags.PrintDefaults()
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0 || *rounds < 1 || *d <= 0:
		fmt.Fprintln(stderr, "crossing: no arguments, at least one round, and some time, please")
		flags.Usage()
		return 2
	}
	if err := compare(*rounds, *d, *dir, stdout); err != nil {
		fmt.Fprintln(stderr, "crossing:", err)
		return 1
	}
	return 0
}

// compare measures, prints, and writes the report if dir is not empty.
func compare(rounds int, d time.Duration, dir string, stdout io.Writer) error {
	ways, err := makeWays()
	if err != nil {
		return err
	}
	if err := check(ways); err != nil {
		return err
	}
	r := results{ways: ways, rounds: rounds, samples: measure(ways, rounds, d)}
	if err := r.print(stdout); err != nil || dir == "" {
		return err
	}
	return r.report().Write(dir)
}

// check has each way make each call, and looks at what the C function saw.
func check(ways []way) error {
	for _, w := range ways {
		if binds := slices.Contains([]string{oursContext, boundCgo, lockedCgo}, w.name); bound(w) != binds {
			return fmt.Errorf("%s: is the context set? %t", w.name, !binds)
		}
		for f, run := range w.run {
			if got := run(3); got != want[f] {
				return fmt.Errorf("%s, arguments %v: C gave %d, not %d", w.name, form(f), got, want[f])
			}
		}
	}
	return nil
}
