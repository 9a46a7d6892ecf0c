// Command sleep measures what an engine waits for that gives up the memory of another process while it is idle: detaching
// from it, and reattaching to it at the same address, beside the bare driver calls in C (bench/c/remap.c).
//
//	sleep -rival gpufd=sleep,-as,engine -rival c=remap [-shapes COUNTxSIZE,…] [-rounds N] [-out DIR]
//
// The rivals take turns, and each has memory of its own. A rival that the device has no room for, or that is not there,
// is left out, and the report says so. With -as engine it is ours, which starts its producer; both use the public API only.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// A shape is memory of count chunks of size bytes.
type shape struct{ count, size uint64 }

func (s shape) String() string { return fmt.Sprintf("%d × %s", s.count, cli.Size(s.size)) }

// shapes is a flag: COUNTxSIZE, with commas between several.
type shapes []shape

func (s *shapes) String() string { return "" }

// Set replaces the shapes.
func (s *shapes) Set(text string) error {
	*s = nil
	for one := range strings.SplitSeq(text, ",") {
		count, size, ok := strings.Cut(one, "x")
		n, err := strconv.ParseUint(count, 10, 64)
		var each cli.Size
		if !ok || err != nil || n == 0 || each.Set(size) != nil || each == 0 {
			return fmt.Errorf("%q: want COUNTxSIZE, such as 64x1GiB", one)
		}
		*s = append(*s, shape{n, uint64(each)})
	}
	return nil
}

// run is the program; it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var rivals rival.Commands
	sizes := shapes{{74, 896 << 20}, {64, 1 << 30}, {1, 64 << 30}}
	flags := flag.NewFlagSet("sleep", flag.ContinueOnError)
	flags.Var(&rivals, "rival", "`NAME=COMMAND,ARG,…` of a program to measure; give it several times, ours first")
	flags.Var(&sizes, "shapes", "`COUNTxSIZE,…` of the memory")
	rounds := flags.Int("rounds", 50, "how `often` each is measured in each shape")
	out := flags.String("out", "", "write sleep.csv into this `directory`")
	as := flags.String("as", "", "be ours, `engine|producer`")
	driver := flags.String("driver", "cuda", "driver of ours, `cuda|soft`")
	socket := flags.String("socket", "", "of a producer: the `path` to listen at")
	refused := cli.ExitOK
	code := program.Run(flags, args, stdout, stderr, func() error {
		if *as != "" {
			err := be(*as, *driver, *socket, stdin, stdout)
			if refused = cli.ExitCode(err); err != nil { // who started it is told why, and nobody else
				return rival.Refuse(stdout, err)
			}
			return nil
		}
		if len(rivals) == 0 || *rounds < 1 {
			return cli.Usagef("want a -rival and at least one round; -h explains")
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return measure(ctx, rivals, sizes, *rounds, *out, stdout, stderr)
	})
	return max(code, refused)
}

// be is one of our processes: it answers until stdin ends, and gives everything back.
func be(as, driver, socket string, stdin io.Reader, stdout io.Writer) error {
	switch as {
	case "engine":
		return beEngine(driver, stdin, stdout)
	case "producer":
		return beProducer(driver, socket, stdin, stdout)
	}
	return cli.Usagef("-as %q: want engine or producer", as)
}
