// Suite runs the tests of packages, several processes at a time, and says what became
// of them:
//
//	suite [flags] [PACKAGE…]       # ./... without any
//
// It builds the test binary of each package, and the commands once for all
// ($GPUFD_BIN). A package's tests are dealt out to several processes, each with a
// software driver's directory of its own, because they wait more than they work. It
// prints a line for each package, the output of what failed, the tests that were not run
// and why, and "N passed, N failed, N skipped" in the end, subtests included.
//
//	make test                          # all packages
//	build/gpu/run.sh                   # all of it, from a bundle, on a GPU machine without Go
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

func main() {
	// The tests run in their own process groups, which no terminal interrupts.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// A config is what a run was asked to do.
type config struct {
	ctx      context.Context // its end ends the tests
	root     string          // of the module, or of the bundle
	bundle   bool            // the test binaries are there already
	hardware bool            // on a GPU
	limit    time.Duration   // per process
	verbose  bool
	said     io.Writer // progress

	out      io.Writer
	packages []string
	together []string // packages whose processes share a GPU
	atOnce   int
	slowest  int
	build    []string // flags of go test -c
	short    bool
	only     string // file of the tests to run, a package and a name on each line
	two      bool   // only list the tests for two devices
	deadline time.Duration
}

// run is main with an exit code: 0, 1 for a failure, 2 for wrong usage.
func run(ctx context.Context, args []string, out, said io.Writer) int {
	c, err := parseFlags(args, said)
	if err != nil {
		return 2
	}
	c.out, c.said, c.hardware = out, said, os.Getenv("GPUFD_DRIVER") == "cuda"
	if c.two {
		if err := printTwo(c.root, c.packages, out); err != nil {
			fmt.Fprintln(said, "suite:", err)
			return 1
		}
		return 0
	}
	if c.deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.deadline)
		defer cancel()
	}
	c.ctx = ctx
	suites, err := c.gather()
	if err != nil {
		fmt.Fprintln(said, "suite:", err)
		return 2
	}
	began := time.Now()
	c.runAll(suites)
	return c.summary(suites, time.Since(began))
}

func parseFlags(args []string, said io.Writer) (config, error) {
	c := config{root: "."}
	f := flag.NewFlagSet("suite", flag.ContinueOnError)
	f.SetOutput(said)
	bundle := f.String("bundle", "", "run the test binaries in this `directory`, DIR/PACKAGE/suite.test, on a GPU")
	together := f.String("together", "", "`packages`, as tests,kernels, whose processes may use a GPU at once; others have it to themselves")
	race := f.Bool("race", false, "build with the race detector")
	f.StringVar(&c.only, "only", "", "run only the tests that this `file` names: a package and a test on each line")
	f.BoolVar(&c.two, "two", false, "run nothing: list the tests of the packages' directories that are for two devices, for -only")
	f.DurationVar(&c.deadline, "deadline", 0, "limit for all; what has not ended by then fails")
	f.BoolVar(&c.short, "short", false, "shorten what takes long")
	f.DurationVar(&c.limit, "timeout", 9*time.Minute, "limit for a process")
	f.IntVar(&c.atOnce, "j", 0, fmt.Sprintf("processes at `once`; 0 is two for each CPU, and %d with -bundle. On a GPU, of packages that may share it", onGPU))
	f.IntVar(&c.slowest, "slowest", 0, "name so many of the slowest tests")
	f.BoolVar(&c.verbose, "v", false, "print what the tests print, as they do")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if c.only != "" && f.NArg() > 0 {
		fmt.Fprintln(said, "suite: -only says what to run: no packages with it")
		return c, errors.New("usage")
	}
	if c.packages = f.Args(); len(c.packages) == 0 && c.only == "" {
		c.packages = []string{"./..."}
	}
	if *together != "" {
		c.together = strings.Split(*together, ",")
	}
	if c.bundle = *bundle != ""; c.bundle {
		c.root = *bundle
		os.Setenv("GPUFD_DRIVER", "cuda")
	}
	if *race {
		c.build = []string{"-race"}
	}
	if c.atOnce <= 0 {
		c.atOnce = 2 * runtime.NumCPU()
		if c.bundle {
			c.atOnce = onGPU
		}
	}
	return c, nil
}

// onGPU is how many processes use a GPU at once: the driver starts them one after
// the other, and each takes longer the more there are.
const onGPU = 4
