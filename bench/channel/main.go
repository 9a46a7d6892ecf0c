// Channel measures what passing frames from process to process through a channel costs,
// beside C that uses the same words, PyTorch and CuPy.
//
//	channel [-rival NAME=COMMAND,ARG,…] … [-frames NAME=COMMAND,ARG,…] … [-two] [-rounds N] [-time D] [-quick] [-out DIR]
//	channel -as writer [-driver cuda|soft] [-ptx FILE] [-on N]
//
// The first asks each rival in turn, as bench/README.md says; rivals of -frames are asked how
// long a frame takes with 8 slots, and nothing else. It prints tables and writes
// channel.csv. With -two it asks what is asked of rivals whose readers are on another device than the
// writer, and writes channel-two.csv. The second is our rival: a writer, whose readers are processes of their own. It
// exits with 2 for a mistake in the flags, with 3 where there is no driver, and with 1 for
// other failures.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the program; it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var s settings
	flags := flag.NewFlagSet("channel", flag.ContinueOnError)
	flags.Var(&s.rivals, "rival", "a rival, `NAME=COMMAND,ARG,…`; the first is ours, the second the one that it is compared with")
	flags.Var(&s.frames, "frames", "a rival, `NAME=COMMAND,ARG,…`, that is asked for frames alone")
	flags.IntVar(&s.rounds, "rounds", 3, "how often each is asked")
	flags.DurationVar(&s.time, "time", 100*time.Second, "after so long each is asked once more at most")
	flags.BoolVar(&s.two, "two", false, "the rivals' readers are on another device than their writers (-on 1)")
	flags.BoolVar(&s.quick, "quick", false, "small frames and few of them, to see that it works")
	out := flags.String("out", "", "`directory` to write channel.csv to; none: print only")
	as := flags.String("as", "", "be `writer|reader`, ours")
	driver := flags.String("driver", "cuda", "driver of ours, `cuda|soft`")
	on := flags.Int("on", 0, "the `device` of our readers; the writer's is 0")
	dir := flags.String("dir", "", "of a reader: the `directory` of the channels")
	ptx := flags.String("ptx", "c/check.ptx", "`file` of the kernel that reads frames")
	return program.Run(flags, args, stdout, stderr, func() error {
		switch *as {
		case "writer", "reader":
			return beSide(*as, *driver, *ptx, *dir, *on, stdin, stdout)
		case "":
		default:
			return cli.Usagef("-as %q: want writer or reader", *as)
		}
		if s.rounds < 1 || len(s.rivals) == 0 {
			return cli.Usagef("want a rival, and a round at least; -h explains")
		}
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		r, err := s.compare(ctx, stderr)
		if err != nil {
			return err
		}
		return r.Write(*out, stdout)
	})
}

// beSide is our rival, or a reader of its.
func beSide(as, driver, ptx, dir string, on int, stdin io.Reader, stdout io.Writer) (err error) {
	refuse := func(err error) error { return errors.Join(err, rival.Refuse(stdout, err)) }
	device := 0
	if as == "reader" {
		device = on
	}
	dev, ctx, err := program.Device(driver, device)
	if err != nil {
		return refuse(err)
	}
	defer func() { err = errors.Join(err, ctx.Close()) }()
	if as == "reader" {
		r := &reader{side: side{ctx, ptx, dir}}
		defer func() { err = errors.Join(err, r.leave()) }()
		return rival.Serve(stdin, stdout, rival.Answer{Name: "reader"}, r.handlers())
	}
	if dir, err = os.MkdirTemp("", "gpufd-bench"); err != nil {
		return refuse(err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	w := &writer{side: side{ctx, ptx, dir}, args: []string{"-driver", driver, "-ptx", ptx, "-on", strconv.Itoa(on)}}
	defer func() { err = errors.Join(err, w.close()) }()
	return rival.Serve(stdin, stdout, rival.Answer{Name: "gpufd", Info: dev.Driver().String()}, w.handlers())
}
