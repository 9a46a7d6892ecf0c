// Command crossing measures what a call from Go into C costs: gpufd's own
// crossing, purego's two, and cgo's, if it was built with that.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program; it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("crossing", flag.ContinueOnError)
	rounds := flags.Int("rounds", 25, "how `often` each way is measured")
	d := flags.Duration("time", 20*time.Millisecond, "how `long` each way makes calls, in each round and form of call")
	dir := flags.String("out", "", "`directory` to write "+reportName+".csv to; none: print only")
	return program.Run(flags, args, stdout, stderr, func() error {
		if *rounds < 1 || *d <= 0 {
			return cli.Usagef("-rounds %d -time %s: want at least one round, and some time", *rounds, *d)
		}
		return compare(*rounds, *d, *dir, stdout)
	})
}

// compare measures and reports.
func compare(rounds int, d time.Duration, dir string, stdout io.Writer) error {
	ways, err := makeWays()
	if err != nil {
		return err
	}
	if err := check(ways); err != nil {
		return err
	}
	r := results{ways: ways, rounds: rounds, samples: measure(ways, rounds, d)}
	return r.report().Write(dir, stdout)
}

// check has each way make each call, and looks at what the C function saw.
func check(ways []way) error {
	for _, w := range ways {
		if binds := slices.Contains([]string{oursContext, boundCgo}, w.name); bound(w) != binds {
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
