// Faults runs the tests that docs/faults.md names and prints a line for each of
// its rows, then how many there were of each kind:
//
//	fault 19 PASS An offer comes without its descriptor
//	fault 44 SKIP takes two devices: …
//	fault 67 FAIL tests TestFault67_WrongSalt: did not run
//
// A row passes if each of its tests ran and passed. A test that fails, crashes,
// hangs or does not exist fails its rows, as does what a package's tests leave
// behind. A skip that the table does not announce, as (skip: words of its
// reason), is a failure, too.
//
//	make faults                        # all rows, in the sources
//	go run ./internal/faults -run 19,25 -v
//	run.sh faults                      # on a GPU machine without Go, in a bundle
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	// The tests run in process groups of their own, which no terminal interrupts.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// A config is what a run was asked to do.
type config struct {
	ctx      context.Context // its end ends the tests
	root     string          // of the module, or of the bundle
	bundle   bool            // the test binaries are there already
	hardware bool            // on a GPU, and rows for it only
	limit    time.Duration   // for a test binary
	verbose  bool
	said     io.Writer // what is going on
}

// run is main with an exit code: 0, 1 for a fault that is not survived, 2 for
// wrong usage.
func run(ctx context.Context, args []string, out, said io.Writer) int {
	c := config{ctx: ctx, root: ".", said: said}
	f := flag.NewFlagSet("faults", flag.ContinueOnError)
	f.SetOutput(said)
	bundle := f.String("bundle", "", "run the test binaries in this `directory`, DIR/PACKAGE/suite.test, on a GPU")
	only := f.String("run", "", "run these `rows` only, as 19,25")
	f.DurationVar(&c.limit, "timeout", 9*time.Minute, "limit for the tests of one package")
	f.BoolVar(&c.verbose, "v", false, "print what the tests print, as they do")
	if err := f.Parse(args); err != nil {
		return 2
	}
	if c.bundle = *bundle != ""; c.bundle {
		c.root = *bundle
		os.Setenv("GPUFD_DRIVER", "cuda")
	}
	c.hardware = os.Getenv("GPUFD_DRIVER") == "cuda"
	rows, err := c.rows(*only)
	if err != nil {
		fmt.Fprintln(said, "faults:", err)
		return 2
	}
	return c.report(rows, c.runAll(rows), out)
}

// rows are those to run.
func (c config) rows(only string) ([]row, error) {
	rows, err := readTable(filepath.Join(c.root, "docs", "faults.md"))
	if err != nil {
		return nil, err
	}
	wanted, err := numbers(only)
	if err != nil {
		return nil, err
	}
	var chosen []row
	for _, r := range rows {
		i := slices.Index(wanted, r.number)
		if i >= 0 {
			wanted = slices.Delete(wanted, i, i+1)
		}
		other := map[bool]string{false: "G", true: "S"}[c.hardware]
		r.tests = slices.DeleteFunc(r.tests, func(t test) bool { return t.only == other })
		if !c.hardware && !r.software {
			r.tests, r.later = nil, "needs a GPU"
		}
		if (only == "" || i >= 0) && (r.hardware || !c.hardware) {
			chosen = append(chosen, r)
		}
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("the table has no row %d", wanted[0])
	}
	return chosen, nil
}

// numbers reads a list of rows.
func numbers(list string) (all []int, err error) {
	for text := range strings.SplitSeq(list, ",") {
		if list == "" {
			break
		}
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("-run %q: want numbers of rows, as 19,25", list)
		}
		all = append(all, n)
	}
	return all, nil
}

// report prints the lines and returns the exit code.
func (c config) report(rows []row, suites map[string]*suite, out io.Writer) int {
	counts := map[verdict]int{}
	for _, r := range rows {
		v, why := c.judge(r, suites)
		counts[v]++
		fmt.Fprintf(out, "fault %02d %s %s\n", r.number, v, why)
	}
	fmt.Fprintf(out, "%d faults: %d passed, %d failed, %d skipped\n", len(rows), counts[passed], counts[failed], counts[skipped])
	return min(counts[failed], 1)
}
